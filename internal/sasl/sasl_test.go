package sasl

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The example of RFC 2831, section 4. It has the service of its own, so it tests the functions
// below the response.
func TestDigestMD5AnswersAsTheExampleOfTheRFC(t *testing.T) {
	const nonce, cnonce = "OA6MG9tEQGm2hh", "OA6MHXh6VqTrRk"
	key := digestKey("chris", "elwood.innosoft.com", "secret", nonce, cnonce)
	response, proof := digestResponses(key, nonce, cnonce, "imap/elwood.innosoft.com")
	if response != "d388dad90d4bbd760a152321f2143af7" || proof != "ea40f60335c427b5527b84dbabcdfffd" {
		t.Errorf("response %s, proof %s", response, proof)
	}
}

// challenge is one of Java's.
const challenge = `realm="zk-sasl-md5",nonce="abc",charset=utf-8,algorithm=md5-sess`

func TestDigestMD5SendsAnEmptyTokenThenTheResponseAndChecksTheProof(t *testing.T) {
	d := DigestMD5(`b"ob\`, "secret").Exchange().(*digest)
	d.nonce = func() string { return "xyz" }
	if token, err := d.Start("zk1:2181"); token == nil || len(token) > 0 || err != nil {
		t.Fatalf("start: %q, %v", token, err)
	}
	token, err := d.Next([]byte(challenge))
	want := `charset=utf-8,username="b\"ob\\",realm="zk-sasl-md5",nonce="abc",nc=00000001,cnonce="xyz",digest-uri="zookeeper/zk-sasl-md5",response=`
	if err != nil || !strings.HasPrefix(string(token), want) || !strings.HasSuffix(string(token), ",qop=auth") {
		t.Fatalf("response %s, %v; want %s", token, err, want)
	}
	_, proof := digestResponses(digestKey(`b"ob\`, "zk-sasl-md5", "secret", "abc", "xyz"), "abc", "xyz", digestService)
	if token, err := d.Next([]byte("rspauth=" + proof)); token != nil || err != nil {
		t.Errorf("the end: %q, %v", token, err)
	}
	if _, err := d.Next([]byte("rspauth=" + proof)); err == nil {
		t.Error("the proof counts twice")
	}
}

func TestDigestMD5RefusesAServerThatDoesNotKnowThePassword(t *testing.T) {
	for _, answer := range []string{"rspauth=00", "rspauth=", "nonce=\"abc\"", ""} {
		d := DigestMD5("bob", "secret").Exchange()
		d.Start("")
		if _, err := d.Next([]byte(challenge)); err != nil {
			t.Fatal(err)
		}
		if token, err := d.Next([]byte(answer)); err == nil || token != nil {
			t.Errorf("%q: %q, %v", answer, token, err)
		}
	}
}

func TestDigestMD5RefusesAChallengeThatItCannotAnswer(t *testing.T) {
	for _, bad := range []string{
		"", "nonce", `nonce="abc`, `nonce="abc\`, "=", `algorithm=md5-sess`, `nonce="abc"`, `nonce="abc",algorithm=md5`,
		`nonce="abc",algorithm=md5-sess,qop="auth-conf"`, strings.Repeat("a", 5000), "\x00\xff",
	} {
		d := DigestMD5("bob", "secret").Exchange()
		d.Start("")
		if token, err := d.Next([]byte(bad)); err == nil {
			t.Errorf("%q is answered by %q", bad, token)
		}
	}
	d := DigestMD5("bob", "secret").Exchange()
	if _, err := d.Next([]byte(challenge)); err == nil {
		t.Error("Next before Start")
	}
	d.Start("")
	if _, err := d.Next(nil); err == nil || !strings.Contains(err.Error(), "not set up for SASL") {
		t.Errorf("no challenge: %v", err)
	}
}

func TestDigestMD5TakesTheRealmThatTheServerOffers(t *testing.T) {
	for offered, want := range map[string]string{
		``:                               "zk-sasl-md5",
		`realm="a",realm="zk-sasl-md5",`: "zk-sasl-md5",
		`realm="a",realm="b",`:           "a",
	} {
		d := DigestMD5("bob", "secret").Exchange()
		d.Start("")
		token, err := d.Next([]byte(offered + `nonce="abc",algorithm=md5-sess,qop="auth-int,auth"`))
		if err != nil || !strings.Contains(string(token), `realm="`+want+`"`) {
			t.Errorf("%s: %s, %v", offered, token, err)
		}
	}
}

func TestTheSecretIsMadeOfISO8859IfThatHasAllCharacters(t *testing.T) {
	for in, want := range map[string]string{"abc": "abc", "jürgen": "j\xfcrgen", "Ωmega": "Ωmega", "": ""} {
		if got := latin(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func FuzzDirectives(f *testing.F) {
	f.Add(challenge)
	f.Add(`a="\"",b=,c`)
	f.Fuzz(func(t *testing.T, s string) {
		d := DigestMD5("bob", "secret").Exchange()
		d.Start("")
		d.Next([]byte(s)) // does not panic
		d.Next([]byte(s))
	})
}

// A scripted mechanism has no Exchange, so its exchanges take turns.
type scripted struct {
	start func() ([]byte, error)
	next  func(challenge []byte) ([]byte, error)
}

func (scripted) Name() string                            { return "SCRIPT" }
func (s scripted) Start(string) ([]byte, error)          { return s.start() }
func (s scripted) Next(challenge []byte) ([]byte, error) { return s.next(challenge) }

func echo(token []byte) ([]byte, error) { return token, nil }

func inline(f func()) { go f() }

func TestAnExchangeEndsWithTheErrorOfItsMechanismOrServer(t *testing.T) {
	oops := errors.New("oops")
	ok := func() ([]byte, error) { return []byte("a"), nil }
	for name, test := range map[string]struct {
		m       scripted
		send    func([]byte) ([]byte, error)
		refused bool
		text    string
	}{
		"Start fails":  {scripted{start: func() ([]byte, error) { return nil, oops }}, echo, false, "SASL SCRIPT: oops"},
		"Next fails":   {scripted{ok, func([]byte) ([]byte, error) { return nil, oops }}, echo, true, "SASL SCRIPT: oops"},
		"it never end": {scripted{ok, echo}, echo, true, "SASL SCRIPT: the server does not finish the exchange"},
		"send fails":   {scripted{ok, echo}, func([]byte) ([]byte, error) { return nil, oops }, false, "SASL SCRIPT: oops"},
	} {
		err := NewClient(test.m).Authenticate(t.Context(), inline, "x", test.send)
		if err == nil || err.Error() != test.text || errors.As(err, new(*RefusedError)) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	if NewClient(nil) != nil {
		t.Error("a client without a mechanism")
	}
}

// A test may leave its mechanism by t.FailNow. The next exchange has its turn.
func TestAMechanismThatEndsItsGoroutineCostsAnExchange(t *testing.T) {
	starts := 0
	c := NewClient(scripted{
		start: func() ([]byte, error) {
			if starts++; starts == 1 {
				runtime.Goexit()
			}
			return []byte("a"), nil
		},
		next: func([]byte) ([]byte, error) { return nil, nil },
	})
	if err := c.Authenticate(t.Context(), inline, "x", echo); err == nil || errors.As(err, new(*RefusedError)) {
		t.Errorf("%v, want an error, and no refusal", err)
	}
	if err := c.Authenticate(t.Context(), inline, "x", echo); err != nil {
		t.Errorf("the next exchange: %v", err)
	}
}

func TestExchangesOfOneMechanismTakeTurnsAndAHungOneKeepsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var starts atomic.Int32
		c := NewClient(scripted{
			start: func() ([]byte, error) { starts.Add(1); <-hang; return []byte{}, nil },
			next:  func([]byte) ([]byte, error) { return nil, nil },
		})
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := c.Authenticate(ctx, inline, "x", echo); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			cancel()
		}
		if n := starts.Load(); n != 1 {
			t.Errorf("%d exchanges have begun, want 1", n)
		}
		close(hang)
		if err := c.Authenticate(t.Context(), inline, "x", echo); err != nil || starts.Load() != 2 {
			t.Errorf("%v, %d begun", err, starts.Load())
		}
	})
}
