package interop_test

import "testing"

func TestForeignLockIsHeldByOneAndHandedOver(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, long), d.mortal(t, servers, short)
		path := fresh(a) + "/lock"
		check(t, "a locks", a.Do("lock l %s 60", path), "true")
		check(t, "b tries", b.Do("lock l %s 0.2", path), "false")

		a.Do("watchchildren %s", path)
		b.Send("lock l %s 60", path)
		check(t, "b queues", a.Do("event"), "CHILD "+path)
		a.Do("release l")
		check(t, "b locks after a's release", b.Ok(), "true")

		b.Do("watchchildren %s", path)
		a.Send("lock l %s 60", path)
		check(t, "a queues", b.Do("event"), "CHILD "+path)
		b.Kill()
		check(t, "a locks after b's death", a.Ok(), "true")
	})
}

func TestForeignReadersShareAndWritersDoNot(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, long), d.program(t, servers, long)
		path := fresh(a) + "/rw"
		check(t, "a reads", a.Do("rlock r %s 60", path), "true")
		check(t, "b reads", b.Do("rlock r %s 60", path), "true")
		b.Do("release r")
		check(t, "b tries to write", b.Do("wlock w %s 0.2", path), "false")

		a.Do("watchchildren %s", path)
		b.Send("wlock w %s 60", path)
		check(t, "b queues", a.Do("event"), "CHILD "+path)
		a.Do("release r")
		check(t, "b writes", b.Ok(), "true")
		check(t, "a tries to read", a.Do("rlock r %s 0.2", path), "false")
		b.Do("release w")
		check(t, "a reads again", a.Do("rlock r %s 60", path), "true")
	})
}

func TestForeignSemaphoreGivesNoMorePermitsThanItHas(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, long), d.program(t, servers, long)
		path := fresh(a) + "/semaphore"
		check(t, "first of two", a.Do("acquire p1 %s 2 60", path), "true")
		check(t, "second of two", b.Do("acquire p2 %s 2 60", path), "true")
		check(t, "third of two", a.Do("acquire p3 %s 2 0.2", path), "false")
		b.Do("release p2")
		check(t, "after a release", a.Do("acquire p3 %s 2 60", path), "true")
	})
}

func TestForeignElectionHasOneLeader(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, short), d.program(t, servers, long)
		path := fresh(a) + "/election"
		check(t, "a leads", a.Do("lead e %s 60", path), "true")
		check(t, "b tries", b.Do("lead e %s 0.2", path), "false")
		a.Do("release e")
		check(t, "b leads", b.Do("lead e %s 60", path), "true")
	})
}

func TestForeignBarrierHoldsUntilOpened(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, long), d.program(t, servers, long)
		path := fresh(a) + "/barrier"
		a.Do("close %s", path)
		check(t, "b tries to pass", b.Do("pass %s 0.2", path), "false")
		b.Send("pass %s 60", path)
		a.Do("open %s", path)
		check(t, "b passes", b.Ok(), "true")
	})
}

func TestForeignDoubleBarrierLetsAllInAndOutTogether(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, long), d.program(t, servers, long)
		path := fresh(a) + "/double"
		a.Send("enter d %s 2", path)
		b.Send("enter d %s 2", path)
		a.Ok()
		b.Ok()
		a.Send("leave d")
		b.Send("leave d")
		a.Ok()
		b.Ok()
		check(t, "left behind", a.Do("children %s", path), "")
	})
}

func TestForeignQueueKeepsItsOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, long), d.program(t, servers, long)
		path := fresh(a) + "/queue"
		for _, v := range []string{"one", "two", "three"} {
			a.Do("put %s %s", path, v)
		}
		for _, v := range []string{"one", "two", "three"} {
			check(t, "take", b.Do("take %s", path), v)
		}
	})
}

func TestForeignCounterCountsEveryAddition(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, long), d.program(t, servers, long)
		path := fresh(a) + "/counter"
		for range 10 {
			a.Send("count %s 2", path)
			b.Send("count %s 3", path)
		}
		for range 10 {
			a.Ok()
			b.Ok()
		}
		check(t, "sum", a.Do("count %s 0", path), "50")
	})
}
