package zktest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The example of RFC 2831, section 4.
func TestTheServersDigestMD5IsThatOfTheRFC(t *testing.T) {
	response, proof := saslAnswers("chris", "secret", "elwood.innosoft.com", "OA6MG9tEQGm2hh", "OA6MHXh6VqTrRk", "imap/elwood.innosoft.com")
	if response != "d388dad90d4bbd760a152321f2143af7" || proof != "ea40f60335c427b5527b84dbabcdfffd" {
		t.Errorf("response %s, proof %s", response, proof)
	}
}

func TestAClientThatProvesItsPasswordIsAuthenticated(t *testing.T) {
	users := map[string]string{"bob": "secret"}
	for name, s := range map[string]*Server{
		"alone":          Start(t, WithSASL(users), WithRequiredAuth("sasl")),
		"in an ensemble": StartEnsemble(t, 1, WithSASL(users), WithRequiredAuth("sasl")).Server(0),
	} {
		login := func(password string) (*rawClient, rawReply) {
			c := connected(t, s, 10*time.Second)
			d := c.call(OpSASL, appendBuffer(nil, []byte{})).d
			challenge := saslFields(string(d.buffer()))
			uri := "zookeeper/zk-sasl-md5"
			response, _ := saslAnswers("bob", password, challenge["realm"], challenge["nonce"], "x", uri)
			return c, c.call(OpSASL, appendBuffer(nil, fmt.Appendf(nil, "username=\"bob\",realm=%q,nonce=%q,nc=00000001,cnonce=\"x\",digest-uri=%q,response=%s,qop=auth", challenge["realm"], challenge["nonce"], uri, response)))
		}
		c, r := login("secret")
		wantCode(t, name, r, CodeOK)
		if proof := string(r.d.buffer()); !strings.HasPrefix(proof, "rspauth=") {
			t.Errorf("%s: %q", name, proof)
		}
		wantCode(t, name, c.call(OpCreate, createBody("/a", "", []acl{{permAll, identity{"auth", ""}}}, 0)), CodeOK)
		c, r = login("wrong")
		wantCode(t, name, r, CodeAuthRequired)
		wantClosed(t, c)

		// Credentials of another scheme are not enough.
		c = connected(t, s, 10*time.Second)
		wantCode(t, name, c.call(OpAuth, authBody("digest", "u:p")), CodeOK)
		wantCode(t, name, c.call(OpExists, watchBody("/", false)), CodeAuthRequired)
	}
}

func TestAServerWithoutSASLAnswersATokenWithNone(t *testing.T) {
	c := connected(t, Start(t), 10*time.Second)
	r := c.call(OpSASL, appendBuffer(nil, []byte{}))
	wantCode(t, "sasl", r, CodeOK)
	if token := r.d.buffer(); token != nil {
		t.Errorf("%q", token)
	}
}
