package kerberos

import (
	"cmp"
	"context"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jcmturner/gokrb5/v8/asn1tools"
	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/gssapi"
	"github.com/jcmturner/gokrb5/v8/iana/chksumtype"
	"github.com/jcmturner/gokrb5/v8/iana/errorcode"
	"github.com/jcmturner/gokrb5/v8/iana/flags"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/krberror"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/zsync/zsync/internal/sasl"
)

// This file authenticates the client to one server, and chooses the ticket for that. It does not
// get tickets from the KDC: see kerberos.go. An exchange is GSSAPI of SASL (RFC 4752) over Kerberos
// (RFC 4121):
//
//	client                          server
//	AP-REQ: ticket, authenticator
//	                                AP-REP: the authenticator's time, encrypted with the ticket's key
//	empty
//	                                wrap: the security layers that it offers
//	wrap: no layer
//	                                empty, or nothing
//
// The client demands mutual authentication: only a server with the key of its principal can send
// the AP-REP.

// The type `exchange` is one exchange with a server.
type exchange struct {
	m    *mechanism
	next func(challenge []byte) ([]byte, error)

	server string              // its principal
	ticket types.EncryptionKey // the key of the ticket
	sent   types.Authenticator
	key    types.EncryptionKey // signs wrapped tokens
	flags  byte                // flags of the tokens that the client wraps
}

func (x *exchange) Name() string { return x.m.Name() }

func (x *exchange) Start(server string) ([]byte, error) {
	host, err := x.m.host(server)
	if err != nil {
		return nil, err
	}
	g, err := x.m.ticketFor(host)
	if err != nil {
		return nil, err
	}
	x.server = g.ticket.SName.PrincipalNameString() + "@" + g.ticket.Realm
	return x.begin(g)
}

// The method `begin` returns the first token.
func (x *exchange) begin(g grant) ([]byte, error) {
	kind, err := crypto.GetEtype(g.key.KeyType)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(wrapping, kind.GetETypeID()) {
		return nil, fmt.Errorf("the ticket for %s has the encryption type %d; want AES: %w", x.server, kind.GetETypeID(), zk.ErrAuthFailed)
	}
	if x.sent, err = types.NewAuthenticator(g.realm, g.name); err != nil {
		return nil, err
	}
	if err := x.sent.GenerateSeqNumberAndSubKey(g.key.KeyType, len(g.key.KeyValue)); err != nil {
		return nil, err
	}
	x.sent.Cksum = types.Checksum{CksumType: chksumtype.GSSAPI, Checksum: contextFlags()}
	request, err := messages.NewAPReq(g.ticket, g.key, x.sent)
	if err != nil {
		return nil, err
	}
	types.SetFlag(&request.APOptions, flags.APOptionMutualRequired)
	b, err := request.Marshal()
	if err != nil {
		return nil, err
	}
	x.ticket, x.key, x.next = g.key, x.sent.SubKey, x.proof
	return appendHeader(tokenRequest, b)
}

// wrapping has the encryption types for which RFC 4121 defines tokens and gokrb5 can make them.
var wrapping = []int32{17, 18, 19, 20}

// contextFlags returns the checksum of an authenticator (RFC 4121, section 4.1.1), without a
// channel binding.
func contextFlags() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 16)
	b = append(b, make([]byte, 16)...)
	return binary.LittleEndian.AppendUint32(b, gssapi.ContextFlagMutual|gssapi.ContextFlagReplay|gssapi.ContextFlagSequence|gssapi.ContextFlagInteg)
}

func (x *exchange) Next(challenge []byte) (_ []byte, err error) {
	defer malformed(&err)
	if x.next == nil {
		return nil, errors.New("Next before Start")
	}
	return x.next(challenge)
}

// The method `proof` checks the server's AP-REP.
func (x *exchange) proof(challenge []byte) ([]byte, error) {
	if len(challenge) == 0 {
		return nil, fmt.Errorf("the server does not accept a ticket for %s: it has another principal or an old keytab (see kerberos.WithService, or --server-principal of the command), or its JAAS file has no section Server with Krb5LoginModule", x.server)
	}
	kind, b, err := cutHeader(challenge)
	if err != nil {
		return nil, err
	}
	if kind == tokenError {
		var refusal messages.KRBError
		if err := refusal.Unmarshal(b); err != nil {
			return nil, err
		}
		return nil, refusal
	}
	var reply messages.APRep
	if kind != tokenReply {
		return nil, fmt.Errorf("the server sent a token of kind %#04x; want an AP-REP", kind)
	}
	if err := reply.Unmarshal(b); err != nil {
		return nil, err
	}
	if b, err = crypto.DecryptEncPart(reply.EncPart, x.ticket, keyusage.AP_REP_ENCPART); err != nil {
		return nil, fmt.Errorf("the server does not have the key of %s: %w", x.server, err)
	}
	var part messages.EncAPRepPart
	if err := part.Unmarshal(b); err != nil {
		return nil, err
	}
	if part.CTime.Unix() != x.sent.CTime.Unix() || part.Cusec != x.sent.Cusec {
		return nil, fmt.Errorf("the server has not proved that it is %s: its AP-REP is of another time", x.server)
	}
	if part.Subkey.KeyType != 0 {
		x.key, x.flags = part.Subkey, flagAcceptorSubkey
	}
	x.next = x.layers
	return []byte{}, nil
}

// noLayer is the code for no security layer (RFC 4752, section 3.3).
const noLayer = 1

// The method `layers` chooses no security layer, because ZooKeeper supports none.
func (x *exchange) layers(challenge []byte) ([]byte, error) {
	offer, err := x.unwrap(challenge)
	if err != nil {
		return nil, err
	}
	if len(offer) != 4 || offer[0]&noLayer == 0 {
		return nil, fmt.Errorf("the server demands a security layer (% x)", offer)
	}
	token, err := x.wrap([]byte{noLayer, 0, 0, 0}) // without an authorization id, so the server uses the principal
	x.next = x.finished
	return token, err
}

// The method `finished` ends the exchange. The server must not send another token.
func (x *exchange) finished(challenge []byte) ([]byte, error) {
	if len(challenge) > 0 {
		return nil, errors.New("the server sent a token after the end of the exchange")
	}
	return nil, nil
}

// Flags of a wrapped token (RFC 4121, section 4.2.2).
const (
	flagFromAcceptor   = 1
	flagSealed         = 2
	flagAcceptorSubkey = 4
)

func (x *exchange) unwrap(token []byte) ([]byte, error) {
	const header = gssapi.HdrLen
	if len(token) < header {
		return nil, fmt.Errorf("the server sent %d bytes; want a wrapped token", len(token))
	}
	flags, rotated := token[2], int(binary.BigEndian.Uint16(token[6:8]))
	if flags&flagSealed != 0 || flags&flagAcceptorSubkey != x.flags {
		return nil, fmt.Errorf("the flags %#x of the server's token are wrong", flags)
	}
	if n := len(token) - header; n > 0 { // undo the rotation to the right
		rotated %= n
		token = slices.Concat(token[:header], token[header+rotated:], token[header:header+rotated])
	}
	var w gssapi.WrapToken
	if err := w.Unmarshal(token, true); err != nil {
		return nil, err
	}
	if ok, err := w.Verify(x.key, keyusage.GSSAPI_ACCEPTOR_SEAL); !ok {
		return nil, fmt.Errorf("the server's token is not signed by %s: %w", x.server, err)
	}
	return w.Payload, nil
}

func (x *exchange) wrap(payload []byte) ([]byte, error) {
	kind, err := crypto.GetEtype(x.key.KeyType)
	if err != nil {
		return nil, err
	}
	w := gssapi.WrapToken{Flags: x.flags, EC: uint16(kind.GetHMACBitLength() / 8), SndSeqNum: uint64(x.sent.SeqNumber), Payload: payload}
	if err := w.SetCheckSum(x.key, keyusage.GSSAPI_INITIATOR_SEAL); err != nil {
		return nil, err
	}
	return w.Marshal()
}

// Kinds of a token (RFC 4121, section 4.1).
const (
	tokenRequest = 0x0100
	tokenReply   = 0x0200
	tokenError   = 0x0300
)

// appendHeader makes a token from a Kerberos message (RFC 2743, section 3.1).
func appendHeader(kind uint16, message []byte) ([]byte, error) {
	oid, err := asn1.Marshal(asn1.ObjectIdentifier(gssapi.OIDKRB5.OID()))
	if err != nil {
		return nil, err
	}
	return asn1tools.AddASNAppTag(append(binary.BigEndian.AppendUint16(oid, kind), message...), 0), nil
}

func cutHeader(token []byte) (kind uint16, message []byte, err error) {
	var outer asn1.RawValue
	var oid asn1.ObjectIdentifier
	rest, err := asn1.Unmarshal(token, &outer)
	if err == nil {
		message, err = asn1.Unmarshal(outer.Bytes, &oid)
	}
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("the server's token is malformed: %w", err)
	case len(rest) > 0 || outer.Class != asn1.ClassApplication || outer.Tag != 0 || len(message) < 2:
		return 0, nil, errors.New("the server's token is malformed")
	case !oid.Equal(asn1.ObjectIdentifier(gssapi.OIDKRB5.OID())):
		return 0, nil, fmt.Errorf("the server's token is of the mechanism %v; want Kerberos", oid)
	}
	return binary.BigEndian.Uint16(message), message[2:], nil
}

// The method `host` returns the name that the principal of a server has for it. server is host:port.
// If the error must end the Session, it matches ErrAuthFailed.
func (m *mechanism) host(server string) (string, error) {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return "", fmt.Errorf("%w: %w", err, zk.ErrAuthFailed)
	}
	if !strings.Contains(m.service, "_HOST") {
		return host, nil
	}
	if m.canonical {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var names []string
		addrs, err := net.DefaultResolver.LookupHost(ctx, host)
		if err == nil {
			names, err = net.DefaultResolver.LookupAddr(ctx, addrs[0])
		}
		var unknown *net.DNSError
		switch {
		case err == nil:
			host = names[0]
		case !errors.As(err, &unknown) || !unknown.IsNotFound:
			return "", err // DNS does not answer now; another name could be of another principal, which the KDC does not know
		}
	}
	if net.ParseIP(host) != nil {
		return "", fmt.Errorf("the connect string has the address %s, but Kerberos knows a server by its name: use names, or kerberos.WithService (--server-principal of the command) or kerberos.WithCanonicalNames: %w", host, zk.ErrAuthFailed)
	}
	return strings.ToLower(strings.TrimSuffix(host, ".")), nil
}

// patience is the time limit for the KDC's answer if the mechanism already has a ticket. It begins with
// the first request that the KDC owes an answer, because the next handshakes may have less time.
const patience = time.Second

// ticketFor returns a ticket for the server on host. It prefers a new ticket, because the keys, or
// the rights of the client, may have changed.
func (m *mechanism) ticketFor(host string) (grant, error) {
	server, realm := types.ParseSPNString(strings.ReplaceAll(m.service, "_HOST", host))
	if realm == "" {
		realm = m.config.ResolveRealm(host)
	}
	name := server.PrincipalNameString()
	m.mu.Lock()
	m.asked = cmp.Or(m.asked, time.Now())
	last, again, asked := m.last[name], m.granted, m.asked
	m.mu.Unlock()
	var g grant
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		g, err = m.fetch(server, realm)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.asked = (time.Time{}); err == nil {
			m.last[name], m.granted = g, true
		}
	}()
	var late <-chan time.Time
	if last.valid() {
		late = time.After(time.Until(asked.Add(patience)))
	}
	// If both cases are ready, either is right, because both tickets are valid.
	select {
	case <-done:
		if err == nil {
			return g, nil
		}
		if err = judge(err, m.user+"@"+m.realm, name, again); last.valid() && !errors.Is(err, zk.ErrAuthFailed) {
			return last, nil
		}
		return grant{}, err
	case <-late:
		return last, nil
	}
}

// code finds the code of the KDC's answer in the text of an error: gokrb5 does not return the code
// itself.
var code = regexp.MustCompile(`KRB Error: \((\d+)\)`)

// The function `judge` adds an explanation to an error of fetch. If the error must end the Session,
// the result matches ErrAuthFailed. again reports whether the KDC has given a ticket for a server
// before.
func judge(err error, principal, server string, again bool) error {
	answer := int32(-1)
	if found := code.FindStringSubmatch(err.Error()); found != nil {
		n, _ := strconv.Atoi(found[1])
		answer = int32(n)
	}
	var cause krberror.Krberror
	silent := answer < 0 && errors.As(err, &cause) && cause.RootCause == krberror.NetworkingError
	switch answer {
	case errorcode.KDC_ERR_PREAUTH_FAILED:
		err = fmt.Errorf("the KDC refuses %s: wrong password, or an old keytab: %w", principal, err)
	case errorcode.KDC_ERR_C_PRINCIPAL_UNKNOWN:
		err = fmt.Errorf("the KDC does not know %s: %w", principal, err)
	case errorcode.KDC_ERR_CLIENT_REVOKED, errorcode.KDC_ERR_KEY_EXPIRED, errorcode.KDC_ERR_NAME_EXP:
		err = fmt.Errorf("the KDC refuses %s: %w", principal, err)
	case errorcode.KDC_ERR_S_PRINCIPAL_UNKNOWN:
		// The error concerns only this server.
		return &sasl.RefusedError{Err: fmt.Errorf("the KDC does not know the server %s (see kerberos.WithService, or --server-principal of the command): %w", server, err)}
	case errorcode.KRB_AP_ERR_SKEW:
		err = fmt.Errorf("the clocks of the KDC and of this machine differ by too much: %w", err)
		fallthrough
	default:
		// Before the first ticket, a wrong setting is more likely than a temporary fault.
		if silent {
			return fmt.Errorf("no KDC answers: %w", err)
		}
		if again || answer == errorcode.KDC_ERR_SVC_UNAVAILABLE || answer == errorcode.KRB_AP_ERR_TKT_EXPIRED {
			return err
		}
	}
	return fmt.Errorf("%w: %w", zk.ErrAuthFailed, err)
}
