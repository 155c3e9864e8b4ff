"""The functions that SQL text over one row may call: what Spark has that looks at its arguments alone.

Left out on purpose: what calls Java (`reflect`), reads files or the network (`from_xml` takes the path of a schema, `from_avro`
and `from_protobuf` that of a description), tells about the session and the cluster (`current_user`, `spark_partition_id`,
`input_file_name`), and what looks at more than one row (aggregates, windows, generators).
"""

from __future__ import annotations

_CONDITIONAL = """
coalesce if ifnull nanvl nullif nullifzero nvl nvl2 zeroifnull equal_null isnan isnotnull isnull assert_true raise_error
"""
_MATHS = """
abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees e exp expm1 factorial
floor greatest hex hypot least ln log log10 log1p log2 mod negative pi pmod positive pow power radians rand randn random
randstr uniform rint round sec sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract
width_bucket bit_count bit_get getbit shiftleft shiftright shiftrightunsigned div
"""
_TEXT = """
ascii base64 bit_length btrim char char_length character_length chr collate collation concat concat_ws contains decode elt
encode endswith find_in_set format_number format_string ilike initcap instr is_valid_utf8 lcase left len length levenshtein
like locate lower lpad ltrim make_valid_utf8 mask octet_length overlay position printf quote regexp regexp_count
regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rlike
rpad rtrim sentences soundex space split split_part startswith substr substring substring_index to_binary to_char to_number
to_varchar translate trim try_to_binary try_to_number try_validate_utf8 ucase unbase64 unhex upper validate_utf8
aes_decrypt aes_encrypt try_aes_decrypt crc32 hash md5 sha sha1 sha2 xxhash64 uuid
parse_url try_parse_url try_url_decode url_decode url_encode
"""
_TIMES = """
add_months convert_timezone curdate current_date current_time current_timestamp current_timezone date_add date_diff date_format
date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract
from_unixtime from_utc_timestamp hour last_day localtimestamp make_date make_dt_interval make_interval make_time make_timestamp
make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname months_between next_day now quarter second
time_diff time_trunc timestamp_micros timestamp_millis timestamp_seconds timestampadd timestampdiff to_date to_time
to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc try_make_interval
try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_to_date try_to_time try_to_timestamp unix_date
unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear year
"""
_NESTED = """
aggregate array array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap
arrays_zip cardinality element_at exists filter flatten forall get map map_concat map_contains_key map_entries map_filter
map_from_arrays map_from_entries map_keys map_values map_zip_with named_struct reduce sequence shuffle size slice sort_array
str_to_map struct transform transform_keys transform_values try_element_at zip_with
from_csv from_json get_json_object json_array_length json_object_keys schema_of_csv schema_of_json to_csv to_json
is_variant_null parse_json schema_of_variant to_variant_object try_parse_json try_variant_get variant_get
"""
_TYPES = "bigint binary boolean cast date decimal double float int smallint string timestamp tinyint try_cast typeof"

ROW_FUNCTIONS = frozenset(" ".join((_CONDITIONAL, _MATHS, _TEXT, _TIMES, _NESTED, _TYPES)).split())
