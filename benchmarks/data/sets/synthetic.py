"""The cards of the synthetic tasks: checksums, and what their answers are scored by. The rows come from
:mod:`benchmarks.data.synthetic`."""

from __future__ import annotations

from benchmarks.data.cards import Card
from benchmarks.data.sources import Generated
from benchmarks.data.synthetic import CORPORA, VERSION


def _dataset(name: str, title: str, scorer: str, train: str, test: str, stepless: bool = False) -> Generated:
    card = Card(
        name=name,
        title=title,
        source="benchmarks/data/synthetic",
        revision=f"generator {VERSION}",
        licence="Apache-2.0",
        citation="",
        version=VERSION,
        forms=("lines",),
        counts=CORPORA[name].sizes,
        records={"train": train, "test": test},
        stepless=stepless,
        scorer=scorer,
    )
    return Generated(card, CORPORA[name].rows)


DATASETS = (
    _dataset(
        "rs_n2_k2",
        "RS (N=2, K=2)",
        "summation",
        "018cff79c48df495f19dedc0e93d97fe7795b5df177195adfb3efa80bd52e47a",
        "e26685a1f33d07bc7f4fcbe17549ec7d035345bb2daaea15aebeb4f413f4e752",
    ),
    _dataset(
        "rs_n2_k3",
        "RS (N=2, K=3)",
        "summation",
        "af737c238d298bf2cd6f07cdba4e923533f4479c3e59abca246e8a77724f3a65",
        "235f8ce04087e0725276fbd3face1a2449ad3135673717ce0af6ba6f641f86d4",
    ),
    _dataset(
        "rs_n5_k3",
        "RS (N=5, K=3)",
        "summation",
        "b61cfd323070763dc9b99cca0f43854a244faf8c83030256ae4e1019eef699c8",
        "3053bad6b81ee4211701910d2178c0e5c62b1ab5dc5cca90bc6898fe7e1ca693",
    ),
    _dataset(
        "rp_n2_k2",
        "RP (N=2, K=2)",
        "pairing",
        "ee8df6ffe8bae7d25563d3442a396aa7fb794658b2dfbe3aebd24149d2568abe",
        "86a414d7d2ba31a8706f0dce953279aea8144ef67416e80e463e8890c15304ec",
    ),
    _dataset(
        "rp_n2_k3",
        "RP (N=2, K=3)",
        "pairing",
        "74c99c3d41a029107e82c2a4af12e46d43e7aaa3f2657101ea9f0c2c3029da45",
        "4cf3fa3d3be3b686cf6d9d776039565017eec1802628c82367e7b02e70190b2f",
    ),
    _dataset(
        "rp_n5_k3",
        "RP (N=5, K=3)",
        "pairing",
        "5d6b0807ceab38bbeb783d8c573d2a1aeb36187fad0dd596dbda69472c97ec8d",
        "aaed9a1d3641133ae77d27e9c3bea05cf0a452c09cdbff5eec1fd0508bbfaf81",
    ),
    _dataset(
        "p24_k1",
        "P24 (K=1)",
        "last_path",
        "e8069187e59fdb92dd2620514a73e21b152fe10065f0022e5ff8166f8effd564",
        "deef5591fe195e77573eaf2060d08e0df12873a87c7c144edc69d5d3bbeb2b1b",
        stepless=True,
    ),
    _dataset(
        "p24_k3",
        "P24 (K=3)",
        "parallel24",
        "37d46bf213e573bc0c9e5818ae1da2421ab3dfa0f9c08c1afea2251912c531e8",
        "1e8b8331ee753f0a300f88ba4549f81df8b02b6c06816b295621ff623d7e1e7d",
    ),
    _dataset(
        "copy_k4",
        "Copy (K=4)",
        "copy",
        "0fd230e367b5b3afc5df7d21ad7e960f8ab1bb87c778f9222da25c332430d38a",
        "a78fd06d7862df808c36622e18b4f931d343ecea8d56144e60657319ef6c106a",
    ),
    _dataset(
        "copy_k8",
        "Copy (K=8)",
        "copy",
        "99fbe5ffcdf392b0cf91009ae878e4d163c4c97ccb61119f78115254172588af",
        "e9fbc3497aa4bc0ea3aa86e0416bd3601c7654e01daa36eb999a098cd457ec0a",
    ),
    _dataset(
        "copy_k16",
        "Copy (K=16)",
        "copy",
        "b569ce737d4e88ce0316292120c849fb0fd56ceacce70dcd19f7afb5dc9ae797",
        "508d090b8fa3319883a4982434594aeaea2dce2f10422eec978d4d3b0f49a329",
    ),
    _dataset(
        "copy_k32",
        "Copy (K=32)",
        "copy",
        "f5f3a13efe4b93f9b3e721bb022eb3d216dc7788c8ff420c4702cc6cb302ad08",
        "ffbe0ff7c430eddef1c67d6bc4d9dcc10207ab462608981de8473fabac6da07a",
    ),
    _dataset(
        "copy_k64",
        "Copy (K=64)",
        "copy",
        "3772a1037b8c8696245704f4922c656c132adf06070b94e471e4522d112b7f15",
        "faa15e23d4ab995a6cad3a8d0ee29c5cd48c696f9bebcdad644068bbd8078ac8",
    ),
)
