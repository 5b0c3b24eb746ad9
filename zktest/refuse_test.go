package zktest

import (
	"testing"
	"time"
)

func TestAServerThatDemandsCredentialsRefusesAllElseAndHangsUp(t *testing.T) {
	s := Start(t, WithRequiredAuth())
	for _, op := range []Op{OpExists, OpSync, OpPing, OpCloseSession} {
		c := connected(t, s, 10*time.Second)
		wantCode(t, op.String(), c.call(op, pathBody("/")), CodeAuthRequired)
		wantClosed(t, c)
	}
	c := connected(t, s, 10*time.Second)
	wantCode(t, "auth", c.call(OpAuth, authBody("digest", "u:p")), CodeOK)
	wantCode(t, "create", c.call(OpCreate, createBody("/a", "", openACL, 0)), CodeOK)
}

func TestAServerOfAnOlderVersionRefusesWhatItDoesNotKnowAndHangsUp(t *testing.T) {
	for name, s := range map[string]*Server{
		"alone":          Start(t, WithoutRequests(OpCreateContainer)),
		"in an ensemble": StartEnsemble(t, 1, WithoutRequests(OpCreateContainer)).Server(0),
	} {
		c := connected(t, s, 10*time.Second)
		wantCode(t, name, c.call(OpCreateContainer, createBody("/a", "", openACL, 4)), CodeUnimplemented)
		wantClosed(t, c)
		c = connected(t, s, 10*time.Second)
		wantCode(t, name, c.call(OpExists, watchBody("/a", false)), CodeNoNode)
		wantCode(t, name, c.call(OpCreate, createBody("/a", "", openACL, 0)), CodeOK)
	}
}

func TestWhatIsBehindARefusedRequestHasNoAnswer(t *testing.T) {
	s := Start(t)
	c := connected(t, s, 10*time.Second)
	s.Intercept(only(OpSync, Refuse(CodeThrottled)))
	c.send(OpSync, pathBody("/"))
	c.send(OpCreate, createBody("/a", "", openACL, 0))
	if r, _, err := c.receive(); err != nil || r.code != CodeThrottled {
		t.Errorf("%v, %v", r.code, err)
	}
	wantClosed(t, c)
	c = connected(t, s, 10*time.Second)
	wantCode(t, "exists", c.call(OpExists, watchBody("/a", false)), CodeNoNode)
}
