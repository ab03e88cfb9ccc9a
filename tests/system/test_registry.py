from loaders.system.registry import WeakRegistry


class One:
    pass


def test_what_is_gone_is_forgotten_without_a_callback() -> None:
    living: WeakRegistry[One] = WeakRegistry()
    kept = [One(), One(), One()]
    for one in kept:
        living.add(one)

    del kept[1], one
    last = One()
    living.add(last)

    assert living.all() == [*kept, last]
    assert len(living._references) == 3
    assert all(reference.__callback__ is None for reference in living._references.values())
