"""The jars of S3: Hadoop's file system `s3a:` and the part of Amazon's SDK that it uses.

Hadoop asks for the whole SDK in one bundle of 686 MB; these are what is loaded of it, 12 MB. Netty, Apache's HTTP client and the
loggers are Spark's own. Without these jars all works but a lake or a source on S3.
"""

from __future__ import annotations

import os

from pipelines.spark.jar_sets import Jar, JarSet

_SDK = "2.35.4"

# Artifact, size, digest.
_OF_SDK = """
annotations 13758 6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8
apache-client 77013 6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740
arns 16323 c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380
auth 241952 6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994
aws-core 192161 fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623
aws-query-protocol 69369 9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f
aws-xml-protocol 102272 4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d
checksums 69585 94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948
checksums-spi 8044 88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec
crt-core 17774 2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62
endpoints-spi 13168 ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00
http-auth 17475 3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491
http-auth-aws 171754 c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01
http-auth-aws-eventstream 8705 709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd
http-auth-spi 48042 4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c
http-client-spi 91685 728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb
identity-spi 30963 188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf
json-utils 33225 80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc
metrics-spi 27262 c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487
netty-nio-client 292688 b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc
profiles 50524 0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8
protocol-core 44371 f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5
regions 962286 77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca
retries 66309 f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469
retries-spi 31487 668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd
s3 4084242 f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc
s3-transfer-manager 251117 0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476
sdk-core 1040729 fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4
third-party-jackson-core 535001 32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea
utils 241618 642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8
utils-lite 8798 e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be
"""


def _sdk() -> tuple[Jar, ...]:
    lines = (line.split() for line in _OF_SDK.strip().splitlines())
    return tuple(Jar("software.amazon.awssdk", name, _SDK, int(size), digest) for name, size, digest in lines)


S3_JARS = (JarSet(
    "S3",
    (
        Jar("org.apache.hadoop", "hadoop-aws", "3.5.0", 938071,
            "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa"),
        Jar("org.reactivestreams", "reactive-streams", "1.0.4", 11640,
            "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28"),
        Jar("software.amazon.eventstream", "eventstream", "1.0.1", 30193,
            "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822"),
        Jar("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1", 2473459,
            "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e"),
        *_sdk(),
    ),
    (
        *("software.amazon.awssdk:bundle", "software.amazon.awssdk:aws-crt-client", "software.amazon.awssdk.crt:*"),
        *("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime", "org.slf4j:*", "io.netty:*"),
        *("org.apache.httpcomponents:*", "commons-logging:*", "commons-codec:*", "org.wildfly.openssl:*"),
    ),
),)  # fmt: skip


def s3_settings() -> dict[str, str]:
    """Return what Hadoop must know of S3, from the environment that obstore and delta-rs read; credentials it finds itself."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    chosen = {"spark.hadoop.fs.s3a.endpoint.region": region} if region else {}
    if endpoint:
        # Who names an endpoint seldom has a host name per bucket; obstore and delta-rs take the bucket for a path, too.
        chosen |= {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
    return chosen
