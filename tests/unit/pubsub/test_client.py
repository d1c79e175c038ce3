from tests.unit.pubsub.client_world import *
from tests.unit.pubsub.client_world import check
import time

def run(seed, **kw):
    world = ClientWorld(seed)
    actors = [world.actor(n) for n in ("ann", "ben", "cem")]
    for a in actors:
        for g in ("a", "b"):
            if a.name != "ann" or g == "a": a.join(g)
    Weather(world, **kw).brew(20, 12)
    for a in actors:
        for n in range(12):
            g = world.rng.choice("ab")
            world.at(world.now + world.rng.random() * 20, lambda a=a, n=n, g=g: a.publish(g, f"{a.name}{n}"))
    world.run_for(25)
    world.failing.clear(); world.let_go()
    world.run_for(120)
    return world

def test_it():
    t = time.time()
    for seed in range(20):
        w = run(seed)
        print(seed, [(a.losses, len(a.got), len(a.settled)) for a in w.actors], len(w.published()))
        try:
            check(w); check_all_is_done(w)
        except AssertionError as e:
            print("  FAIL", str(e)[:200], [a.client.phase for a in w.actors]); 
    print(time.time() - t)
