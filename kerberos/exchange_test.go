package kerberos

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jcmturner/gofork/encoding/asn1"
	"github.com/jcmturner/gokrb5/v8/asn1tools"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/gssapi"
	"github.com/jcmturner/gokrb5/v8/iana/asnAppTag"
	"github.com/jcmturner/gokrb5/v8/iana/errorcode"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/iana/msgtype"
	"github.com/jcmturner/gokrb5/v8/krberror"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/sasl"
)

// An acceptor is the server's side of an exchange, without a KDC.
type acceptor struct {
	t           *testing.T
	ticket, own types.EncryptionKey // own is its subkey, which may be missing
	late        int                 // seconds added to the client's time
	rotate      int
	sent        types.Authenticator
}

func newKey(t *testing.T, kind int32) types.EncryptionKey {
	t.Helper()
	size := map[int32]int{17: 16, 18: 32, 19: 16, 20: 32}[kind]
	return types.EncryptionKey{KeyType: kind, KeyValue: []byte(strings.Repeat("k", size))}
}

// begin returns a client's exchange that has sent its first token.
func (a *acceptor) begin() (x *exchange, request []byte) {
	a.t.Helper()
	x = &exchange{m: &mechanism{}, server: "zookeeper/zk1@REALM"}
	request, err := x.begin(grant{
		ticket: messages.Ticket{TktVNO: 5, Realm: "REALM", SName: types.NewPrincipalName(1, "zookeeper/zk1"), EncPart: types.EncryptedData{EType: a.ticket.KeyType, Cipher: []byte("c")}},
		key:    a.ticket, name: types.NewPrincipalName(1, "bob"), realm: "REALM",
	})
	harness.Must(a.t, err)
	return x, request
}

// reply checks the client's request, and answers it.
func (a *acceptor) reply(request []byte) []byte {
	a.t.Helper()
	kind, b, err := cutHeader(request)
	harness.Must(a.t, err)
	var q messages.APReq
	harness.Must(a.t, q.Unmarshal(b))
	plain, err := crypto.DecryptEncPart(q.EncryptedAuthenticator, a.ticket, keyusage.AP_REQ_AUTHENTICATOR)
	harness.Must(a.t, err)
	harness.Must(a.t, a.sent.Unmarshal(plain))
	if kind != tokenRequest || a.sent.CName.PrincipalNameString() != "bob" || !types.IsFlagSet(&q.APOptions, 2) {
		a.t.Errorf("a token of kind %#x of %v with the options %v; want a request of bob for mutual authentication", kind, a.sent.CName, q.APOptions)
	}
	part, err := asn1.Marshal(messages.EncAPRepPart{CTime: a.sent.CTime.Add(time.Duration(a.late) * time.Second), Cusec: a.sent.Cusec, Subkey: a.own, SequenceNumber: 7})
	harness.Must(a.t, err)
	sealed, err := crypto.GetEncryptedData(asn1tools.AddASNAppTag(part, asnAppTag.EncAPRepPart), a.ticket, keyusage.AP_REP_ENCPART, 0)
	harness.Must(a.t, err)
	b, err = asn1.Marshal(messages.APRep{PVNO: 5, MsgType: msgtype.KRB_AP_REP, EncPart: sealed})
	harness.Must(a.t, err)
	token, err := appendHeader(tokenReply, asn1tools.AddASNAppTag(b, asnAppTag.APREP))
	harness.Must(a.t, err)
	return token
}

// key returns the key that signs the server's tokens, and its flag.
func (a *acceptor) key() (types.EncryptionKey, byte) {
	if a.own.KeyType != 0 {
		return a.own, flagAcceptorSubkey
	}
	return a.sent.SubKey, 0
}

func (a *acceptor) wrap(payload []byte) []byte {
	a.t.Helper()
	key, flags := a.key()
	kind, err := crypto.GetEtype(key.KeyType)
	harness.Must(a.t, err)
	w := gssapi.WrapToken{Flags: flagFromAcceptor | flags, EC: uint16(kind.GetHMACBitLength() / 8), SndSeqNum: 7, Payload: payload}
	harness.Must(a.t, w.SetCheckSum(key, keyusage.GSSAPI_ACCEPTOR_SEAL))
	b, err := w.Marshal()
	harness.Must(a.t, err)
	body := b[gssapi.HdrLen:]
	cut := len(body) - a.rotate
	b = append(b[:gssapi.HdrLen:gssapi.HdrLen], append(append([]byte(nil), body[cut:]...), body[:cut]...)...)
	b[7] = byte(a.rotate)
	return b
}

func TestAnExchangeSucceedsWithEachKeyThatAServerMayChoose(t *testing.T) {
	for _, kind := range wrapping {
		for _, subkey := range []bool{false, true} {
			a := &acceptor{t: t, ticket: newKey(t, kind)}
			if subkey {
				a.own, a.rotate = newKey(t, 17), 12
			}
			x, token := a.begin()
			token, err := x.Next(a.reply(token))
			if err != nil || token == nil || len(token) > 0 {
				t.Fatalf("type %d: after the AP-REP the client sends %x, %v; want an empty token", kind, token, err)
			}
			token, err = x.Next(a.wrap([]byte{noLayer | 6, 0, 1, 0}))
			harness.Must(t, err)
			key, flags := a.key()
			var w gssapi.WrapToken
			harness.Must(t, w.Unmarshal(token, false))
			if ok, err := w.Verify(key, keyusage.GSSAPI_INITIATOR_SEAL); !ok {
				t.Errorf("type %d: %v", kind, err)
			}
			if string(w.Payload) != "\x01\x00\x00\x00" || w.Flags != flags || w.SndSeqNum != uint64(a.sent.SeqNumber) {
				t.Errorf("type %d: the client chooses % x with the flags %#x and the number %d", kind, w.Payload, w.Flags, w.SndSeqNum)
			}
			if token, err = x.Next(nil); token != nil || err != nil {
				t.Errorf("type %d: after the end %x, %v", kind, token, err)
			}
		}
	}
}

func TestAnExchangeFailsIfTheServerDoesNotProveThatItHasTheKey(t *testing.T) {
	ticket := newKey(t, 18)
	other := types.EncryptionKey{KeyType: 18, KeyValue: []byte(strings.Repeat("o", 32))}
	for want, answer := range map[string]func(a *acceptor, request []byte) []byte{
		"the server does not accept a ticket for zookeeper/zk1@REALM": func(*acceptor, []byte) []byte { return nil },
		"its AP-REP is of another time":                               func(a *acceptor, b []byte) []byte { a.late = 1; return a.reply(b) },
		"the server does not have the key": func(a *acceptor, b []byte) []byte {
			fake := &acceptor{t: t, ticket: ticket}
			fake.reply(b) // reads the time
			fake.ticket = other
			part, _ := asn1.Marshal(messages.EncAPRepPart{CTime: fake.sent.CTime, Cusec: fake.sent.Cusec})
			sealed, err := crypto.GetEncryptedData(asn1tools.AddASNAppTag(part, asnAppTag.EncAPRepPart), other, keyusage.AP_REP_ENCPART, 0)
			harness.Must(t, err)
			b, _ = asn1.Marshal(messages.APRep{PVNO: 5, MsgType: msgtype.KRB_AP_REP, EncPart: sealed})
			token, _ := appendHeader(tokenReply, asn1tools.AddASNAppTag(b, asnAppTag.APREP))
			return token
		},
		"a token of kind 0x0100; want an AP-REP": func(_ *acceptor, b []byte) []byte { return b },
		"malformed":                              func(a *acceptor, b []byte) []byte { return a.reply(b)[:9] },
	} {
		a := &acceptor{t: t, ticket: ticket}
		x, request := a.begin()
		if _, err := x.Next(answer(a, request)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	for want, change := range map[string]func(a *acceptor, token []byte) []byte{
		"not signed":                          func(_ *acceptor, b []byte) []byte { b[gssapi.HdrLen] ^= 2; return b },
		"the flags 0x3":                       func(_ *acceptor, b []byte) []byte { b[2] |= flagSealed; return b },
		"the flags 0x5":                       func(_ *acceptor, b []byte) []byte { b[2] |= flagAcceptorSubkey; return b },
		"want a wrapped token":                func(_ *acceptor, b []byte) []byte { return b[:5] },
		"inconsistent checksum":               func(_ *acceptor, b []byte) []byte { return b[:gssapi.HdrLen] },
		"the server demands a security layer": func(a *acceptor, _ []byte) []byte { return a.wrap([]byte{4, 0, 1, 0}) },
	} {
		a := &acceptor{t: t, ticket: ticket}
		x, request := a.begin()
		_, err := x.Next(a.reply(request))
		harness.Must(t, err)
		if _, err := x.Next(change(a, a.wrap([]byte{7, 0, 1, 0}))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

func TestOnlyARefusalOfTheKDCEndsASession(t *testing.T) {
	answer := func(code int32) error {
		return krberror.Errorf(messages.KRBError{ErrorCode: code}, krberror.KDCError, "AS Exchange Error")
	}
	silent := krberror.NewErrorf(krberror.NetworkingError, "no KDC answers")
	for _, c := range []struct {
		what  string
		err   error
		again bool
		ends  bool
	}{
		{"a wrong password", answer(errorcode.KDC_ERR_PREAUTH_FAILED), false, true},
		{"a password that was changed", answer(errorcode.KDC_ERR_PREAUTH_FAILED), true, true},
		{"a client that was deleted", answer(errorcode.KDC_ERR_C_PRINCIPAL_UNKNOWN), true, true},
		{"clocks that differ from the start", answer(errorcode.KRB_AP_ERR_SKEW), false, true},
		{"clocks that differ later", answer(errorcode.KRB_AP_ERR_SKEW), true, false},
		{"a KDC that cannot answer", answer(errorcode.KDC_ERR_SVC_UNAVAILABLE), false, false},
		{"a ticket that has ended on its way", answer(errorcode.KRB_AP_ERR_TKT_EXPIRED), false, false},
		{"no KDC from the start", silent, false, false},
		{"no KDC later", silent, true, false},
		{"a cache that has ended at the start", errors.New("ended"), false, true},
		{"a cache that has ended later", errors.New("ended"), true, false},
	} {
		if err := judge(c.err, "bob@REALM", "zookeeper/zk1", c.again); errors.Is(err, zk.ErrAuthFailed) != c.ends || !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("%s: %v; want an end: %v", c.what, err, c.ends)
		}
	}
	err := judge(answer(errorcode.KDC_ERR_S_PRINCIPAL_UNKNOWN), "bob@REALM", "zookeeper/zk1", false)
	if !errors.As(err, new(*sasl.RefusedError)) || !strings.Contains(err.Error(), "the KDC does not know the server zookeeper/zk1") {
		t.Errorf("an unknown server: %v; want it to concern this server alone", err)
	}
}

func TestTheHostOfAPrincipalIsTheNameInTheConnectString(t *testing.T) {
	m := &mechanism{service: "zookeeper/_HOST"}
	for server, want := range map[string]string{"ZK1.Example.org.:2181": "zk1.example.org", "zk1:2181": "zk1"} {
		if got, err := m.host(server); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", server, got, err, want)
		}
	}
	for _, server := range []string{"10.0.0.1:2181", "[::1]:2181"} {
		if got, err := m.host(server); err == nil || !strings.Contains(err.Error(), "kerberos.WithCanonicalNames") {
			t.Errorf("%s: %q, %v; want an error that names the options", server, got, err)
		}
	}
	m.service = "zookeeper/all.example.org"
	if _, err := m.host("10.0.0.1:2181"); err != nil {
		t.Errorf("a principal without _HOST: %v", err)
	}
}

func TestACanonicalNameIsThatOfTheAddress(t *testing.T) {
	names, err := net.DefaultResolver.LookupAddr(t.Context(), "127.0.0.1")
	harness.Must(t, err)
	file := filepath.Join(t.TempDir(), "krb5.conf")
	harness.Must(t, os.WriteFile(file, []byte("[libdefaults]\n dns_lookup_kdc = false\n[realms]\n A.TEST = {\n  kdc = 127.0.0.1\n }\n"), 0o600))
	m, err := Password("bob@A.TEST", "p", WithConfig(file), WithCanonicalNames())
	harness.Must(t, err)
	want := strings.ToLower(strings.TrimSuffix(names[0], "."))
	if got, err := m.(*mechanism).host("127.0.0.1:2181"); got != want || err != nil {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// With canonical names, a moment without DNS does not end the Session: the next attempt asks again.
func TestAServerHasNoPrincipalWhileDNSDoesNotAnswer(t *testing.T) {
	old := net.DefaultResolver
	defer func() { net.DefaultResolver = old }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no route to the server of DNS")
	}}
	x := &exchange{m: &mechanism{service: "zookeeper/_HOST", canonical: true}}
	for _, server := range []string{"192.0.2.1:2181", "zk1.example.org:2181"} {
		if _, err := x.Start(server); err == nil || errors.Is(err, zk.ErrAuthFailed) {
			t.Errorf("%s: %v; want an error that another attempt can cure", server, err)
		}
	}
	x.m.canonical = false
	if _, err := x.Start("192.0.2.1:2181"); !errors.Is(err, zk.ErrAuthFailed) {
		t.Errorf("an address without canonical names: %v; want the end of the Session", err)
	}
}

func TestWrongArgumentsAreErrorsAtOnce(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		harness.Must(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	config := WithConfig(file("krb5.conf", "[libdefaults]\n dns_lookup_kdc = false\n[realms]\n A.TEST = {\n  kdc = 127.0.0.1\n }\n"))
	t.Setenv("KRB5CCNAME", "KEYRING:persistent:0")
	for _, c := range []struct {
		make func() (any, error)
		want string
	}{
		{func() (any, error) { return Password("bob@A.TEST", "p", WithConfig(filepath.Join(dir, "none"))) }, "no such file"},
		{func() (any, error) { return Password("bob@A.TEST", "", config) }, "the password is empty"},
		{func() (any, error) { return Password("bob", "p", config) }, "has no default_realm"},
		{func() (any, error) { return Password("@A.TEST", "p", config) }, "an empty name"},
		{func() (any, error) { return Password("bob@B.TEST", "p", config) }, "has no KDC of the realm B.TEST"},
		{func() (any, error) { return Password("bob@A.TEST", "p", config, WithService("zookeeper")) }, "want SERVICE/HOST"},
		{func() (any, error) { return Password("bob@A.TEST", "p", config, nil) }, "option 1 is nil"},
		{func() (any, error) { return Keytab("bob@A.TEST", filepath.Join(dir, "none"), config) }, "no such file"},
		{func() (any, error) { return Keytab("bob@A.TEST", file("keytab", "\x05\x02\x00\x00\x00\x40ab"), config) }, "keytab"},
		{func() (any, error) { return Keytab("bob@A.TEST", file("empty", ""), config) }, "empty"},
		{func() (any, error) { return Cache(file("cache", "\x05\x04\x00\x0c\x00"), config) }, "Invalid credential cache"},
		{func() (any, error) { return Cache(file("nothing", ""), config) }, "malformed"},
		{func() (any, error) { return Cache("", config) }, "only files are supported"},
	} {
		if m, err := c.make(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "kerberos: ") {
			t.Errorf("%v, %v; want %s", m, err, c.want)
		}
	}
	m, err := Password("bob@A.TEST", "p", config)
	harness.Must(t, err)
	if _, err := m.(*mechanism).Exchange().Next(nil); err == nil {
		t.Error("Next before Start succeeds")
	}
}

// The next handshakes may have less time than the KDC had in the first: the session must not wait for the KDC until its end.
func TestASilentKDCDelaysTheHandshakesOfASessionByASecondAltogether(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		up := make(chan struct{})
		m := &mechanism{service: "zookeeper/_HOST", config: config.New(), last: map[string]grant{}}
		m.granting = func() (grant, error) { <-up; return grant{}, errors.New("no cache") }
		m.last["zookeeper/zk1"] = grant{ticket: messages.Ticket{SName: types.NewPrincipalName(1, "zookeeper/zk1"), EncPart: types.EncryptedData{EType: 18, Cipher: []byte("c")}}, key: newKey(t, 18), end: time.Now().Add(time.Hour)}
		start := func(want time.Duration) {
			t.Helper()
			began := time.Now()
			if _, err := m.Exchange().Start("zk1:2181"); err != nil || time.Since(began) != want {
				t.Errorf("after %v: %v; want a token after %v", time.Since(began), err, want)
			}
		}
		go start(time.Second)
		time.Sleep(700 * time.Millisecond) // the handshake is given up
		start(300 * time.Millisecond)
		start(0)
		for range 3 {
			up <- struct{}{}
		}
		synctest.Wait()
		start(time.Second) // since the KDC has answered, a new ticket is preferred again
		up <- struct{}{}
	})
}

// gokrb5 panics if it decrypts less than a checksum. The answers come from the network: they must not end the process.
func TestAMalformedAnswerEndsAnExchangeAndNotTheProcess(t *testing.T) {
	a := &acceptor{t: t, ticket: newKey(t, 18)}
	for n := range 40 {
		b, err := asn1.Marshal(messages.APRep{PVNO: 5, MsgType: msgtype.KRB_AP_REP, EncPart: types.EncryptedData{EType: 18, Cipher: make([]byte, n)}})
		harness.Must(t, err)
		token, err := appendHeader(tokenReply, asn1tools.AddASNAppTag(b, asnAppTag.APREP))
		harness.Must(t, err)
		x, _ := a.begin()
		if _, err := x.Next(token); err == nil {
			t.Errorf("an AP-REP with %d encrypted bytes is accepted", n)
		}
	}
	key := newKey(t, 18)
	m := &mechanism{config: config.New(), granting: func() (grant, error) { // in place of the answer of a KDC
		_, err := crypto.DecryptEncPart(types.EncryptedData{EType: 18, Cipher: []byte("c")}, key, keyusage.AS_REP_ENCPART)
		return grant{}, err
	}}
	if _, err := m.fetch(types.NewPrincipalName(1, "zookeeper/zk1"), ""); err == nil {
		t.Error("a malformed answer of the KDC gives a ticket")
	}
}
