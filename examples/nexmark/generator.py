"""Events of Nexmark: persons who sell and bid, their auctions, and the bids, as lines of JSON.

The distribution is the published one, of Apache Beam's generator (`sdks/java/testing/nexmark`, package `sources.generator`) as
https://github.com/nexmark/nexmark has it (`nexmark-flink`, package `generator`): of 50 events one is a person, three are
auctions and 46 are bids; half of the bids go to a hot auction, three quarters come from a hot bidder, and three quarters of the
auctions are of a hot seller; prices are log-uniform between 1 and a million (in cents); half of the bids come by one of four
hot channels. Ids run ahead: a bid may come before its auction, and an auction before its seller.

An event is made from the seed and its number alone, so a longer stream begins with the shorter one. Event time is the number
over the rate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

PERSONS, AUCTIONS, BIDS = 1, 3, 46
EPOCH = PERSONS + AUCTIONS + BIDS
"""Events of one round: a person, its auctions, its bids."""
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
HOT = 100
"""The first of each hundred auctions or persons is hot."""
HOT_AUCTIONS, HOT_BIDDERS, HOT_SELLERS, HOT_CHANNELS = 1 / 2, 3 / 4, 3 / 4, 1 / 2
IN_FLIGHT, ACTIVE, AHEAD = 100, 1000, 10
"""Auctions that are bid for, persons that bid and sell, and ids that may be named before they come."""
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
CHANNELS = 10_000
CHANNELS_BY_NAME = ("Google", "Facebook", "Baidu", "Apple")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
)  # fmt: skip
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")

_ROUNDS = 100  # are drawn at once: with fewer the calls cost more than the numbers
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype="u1")


@dataclass(frozen=True)
class Auctions:
    """A stream of events.

    Args:
        seed: another one gives other events.
        rate: events per second of event time. Above 1000 several events share a millisecond.
        start: the time of the first event, UTC.
    """

    seed: int = 1
    rate: int = 10_000
    start: str = "2026-01-01T00:00:00"

    def lines(self, stop: int) -> Iterator[str]:
        """Yield the first `stop` events, one line of JSON each."""
        size = _ROUNDS * EPOCH
        for part in range(-(-stop // size)):
            yield from _part(self, part)[: stop - part * size]

    def write(self, folder: Path, cuts: Sequence[int]) -> None:
        """Write the events into files of these sizes, in order, which a source takes in order."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = self.lines(sum(cuts))
        for number, size in enumerate(cuts):
            file = folder / f"{number:05d}.json"
            with file.open("w") as out:
                out.writelines(f"{next(lines)}\n" for _ in range(size))
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def random_cuts(seed: int, events: int, files: int) -> list[int]:
    """Cut so many events into files at random places; each file gets at least one."""
    places = np.random.default_rng(seed).choice(np.arange(1, events), files - 1, replace=False)
    return [int(size) for size in np.diff([0, *sorted(places), events])]


def _part(config: Auctions, part: int) -> list[str]:
    """A hundred rounds of events, whose chance depends on the seed and the part's number."""
    chance = np.random.default_rng([config.seed, part])
    rounds = np.arange(part * _ROUNDS, (part + 1) * _ROUNDS)
    persons = _persons(config, chance, rounds)
    auctions = _auctions(config, chance, rounds)
    bids = _bids(config, chance, rounds)
    lines = list[str]()
    for number, person in enumerate(persons):
        lines.append(person)
        lines += auctions[number * AUCTIONS : (number + 1) * AUCTIONS]
        lines += bids[number * BIDS : (number + 1) * BIDS]
    return lines


def _persons(config: Auctions, chance: np.random.Generator, rounds: np.ndarray) -> list[str]:
    many = len(rounds)
    first, last = chance.integers(0, len(FIRST_NAMES), many), chance.integers(0, len(LAST_NAMES), many)
    city, state = chance.integers(0, len(CITIES), many), chance.integers(0, len(STATES), many)
    cards = chance.integers(0, 10_000, (many, 4))
    user, host = _words(chance, many, 7), _words(chance, many, 5)
    extra = _extras(chance, np.full(many, PERSON_BYTES - 70))
    return [
        f'{{"event_type":0,"person":{{"id":{FIRST_ID + rounds[n]},'
        f'"name":"{FIRST_NAMES[first[n]]} {LAST_NAMES[last[n]]}","emailAddress":"{user[n]}@{host[n]}.com",'
        f'"creditCard":"{" ".join(f"{digits:04d}" for digits in cards[n])}",'
        f'"city":"{CITIES[city[n]]}","state":"{STATES[state[n]]}","dateTime":"{at}","extra":"{extra[n]}"}}}}'
        for n, at in enumerate(_times(config, rounds * EPOCH))
    ]


def _auctions(config: Auctions, chance: np.random.Generator, rounds: np.ndarray) -> list[str]:
    ids = (rounds[:, None] * AUCTIONS + np.arange(AUCTIONS)).ravel()
    numbers = (rounds[:, None] * EPOCH + PERSONS + np.arange(AUCTIONS)).ravel()
    many = len(ids)
    seller = np.where(chance.random(many) < HOT_SELLERS, ids // AUCTIONS // HOT * HOT, _person(chance, ids // AUCTIONS))
    category = FIRST_CATEGORY + chance.integers(0, CATEGORIES, many)
    initial, more = _prices(chance, many), _prices(chance, many)
    # An auction lasts until about a hundred further ones have begun.
    horizon = max(1, 2 * IN_FLIGHT * EPOCH // AUCTIONS * 1000 // config.rate)
    lasts = 1 + chance.integers(0, horizon, many)
    name, description = _words(chance, many, 20), _words(chance, many, 100)
    extra = _extras(
        chance, AUCTION_BYTES - 48 - np.array([len(a) + len(b) for a, b in zip(name, description, strict=True)])
    )
    began, expires = _times(config, numbers), _times(config, numbers, lasts)
    return [
        f'{{"event_type":1,"auction":{{"id":{FIRST_ID + ids[n]},"itemName":"{name[n]}","description":"{description[n]}",'
        f'"initialBid":{initial[n]},"reserve":{initial[n] + more[n]},"dateTime":"{began[n]}","expires":"{expires[n]}",'
        f'"seller":{FIRST_ID + seller[n]},"category":{category[n]},"extra":"{extra[n]}"}}}}'
        for n in range(many)
    ]


def _bids(config: Auctions, chance: np.random.Generator, rounds: np.ndarray) -> list[str]:
    numbers = (rounds[:, None] * EPOCH + PERSONS + AUCTIONS + np.arange(BIDS)).ravel()
    many, newest = len(numbers), np.repeat(rounds * AUCTIONS + AUCTIONS - 1, BIDS)
    oldest = np.maximum(newest - IN_FLIGHT, 0)
    other_auction = oldest + (chance.random(many) * (newest - oldest + 1 + AHEAD)).astype("int64")
    auction = np.where(chance.random(many) < HOT_AUCTIONS, newest // HOT * HOT, other_auction)
    person = np.repeat(rounds, BIDS)
    # The second of a hundred, so that hot bidders are not the hot sellers.
    bidder = np.where(chance.random(many) < HOT_BIDDERS, person // HOT * HOT + 1, _person(chance, person))
    price = _prices(chance, many)
    hot, which = chance.random(many) < HOT_CHANNELS, chance.integers(0, len(CHANNELS_BY_NAME), many)
    other = chance.integers(0, CHANNELS, many)
    extra = _extras(chance, np.full(many, BID_BYTES - 32))
    ways = [_way(config.seed, CHANNELS + which[n] if hot[n] else other[n]) for n in range(many)]
    return [
        f'{{"event_type":2,"bid":{{"auction":{FIRST_ID + auction[n]},"bidder":{FIRST_ID + bidder[n]},"price":{price[n]},'
        f'"channel":"{ways[n][0]}","url":"{ways[n][1]}","dateTime":"{at}","extra":"{extra[n]}"}}}}'
        for n, at in enumerate(_times(config, numbers))
    ]


def _person(chance: np.random.Generator, newest: np.ndarray) -> np.ndarray:
    """One of the active persons, or of the next ones."""
    active = np.minimum(newest + 1, ACTIVE)
    return newest + 1 - active + (chance.random(len(newest)) * (active + AHEAD)).astype("int64")


def _prices(chance: np.random.Generator, many: int) -> np.ndarray:
    return np.round(10 ** (chance.random(many) * 6) * 100).astype("int64")


_WAYS: dict[tuple[int, int], tuple[str, str]] = {}


def _way(seed: int, channel: int) -> tuple[str, str]:
    """A channel's name and URL; nine of ten URLs name the channel."""
    known = _WAYS.get((seed, channel))
    if known is None:
        chance = np.random.default_rng([seed, 1 << 40, channel])
        folders = "/".join(word.replace(" ", "_") for word in _words(chance, 3, 5))
        url = f"https://www.nexmark.com/{folders}/item.htm?query=1"
        if channel >= CHANNELS:
            known = CHANNELS_BY_NAME[channel - CHANNELS], url
        else:
            named = f"&channel_id={int(f'{channel:031b}'[::-1], 2)}" if chance.integers(10) else ""
            known = f"channel-{channel}", url + named
        _WAYS[seed, channel] = known
    return known


def _times(config: Auctions, numbers: np.ndarray, later: np.ndarray | int = 0) -> list[str]:
    """The times of events, in milliseconds."""
    since = np.datetime64(datetime.fromisoformat(config.start), "ms")
    return [
        f"{at}Z"
        for at in np.datetime_as_string(since + (numbers * 1000 // config.rate + later).astype("timedelta64[ms]"))
    ]


def _words(chance: np.random.Generator, many: int, longest: int) -> list[str]:
    """Words of three letters or more, of which one in thirteen is a space."""
    letters = _LETTERS[chance.integers(0, 26, (many, longest))]
    letters[chance.integers(0, 13, (many, longest)) == 0] = ord(" ")
    lengths = chance.integers(3, longest, many)
    return [row[:length].tobytes().decode().strip() for row, length in zip(letters, lengths, strict=True)]


def _extras(chance: np.random.Generator, wanted: np.ndarray) -> list[str]:
    """Letters that bring an event to about the size that it is to have, a fifth more or less."""
    lengths = (np.maximum(wanted, 0) * (0.8 + 0.4 * chance.random(len(wanted)))).astype("int64")
    text = _LETTERS[chance.integers(0, 26, int(lengths.sum()))].tobytes().decode()
    ends = np.cumsum(lengths)
    return [text[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
