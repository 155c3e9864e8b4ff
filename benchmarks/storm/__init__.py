"""Word count by Storm Trident, to measure beside: a topology in Java, the sentences that both read, and an independent count."""
