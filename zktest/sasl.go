package zktest

import (
	"crypto/md5"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
)

// This file has the server's side of SASL with the mechanism DIGEST-MD5. zktest does not have
// Kerberos.

// WithSASL makes the server authenticate clients with SASL DIGEST-MD5, as ZooKeeper does with a
// JAAS file. The map `users` has the password of each user. A client that has proved a password has
// the identity sasl:USER.
func WithSASL(users map[string]string) Option {
	return func(s *Server) { s.saslUsers = maps.Clone(users) }
}

// SetSASLUsers replaces the users of [WithSASL], for later exchanges.
func (s *Server) SetSASLUsers(users map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saslUsers = maps.Clone(users)
}

// WithClientCertificate gives every client the identity x509:SUBJECT, as if it
// had connected with TLS and a certificate with this subject, such as "CN=me".
func WithClientCertificate(subject string) Option {
	return func(s *Server) { s.certificate = subject }
}

// saslRealm is ZooKeeper's name in DIGEST-MD5.
const saslRealm = "zk-sasl-md5"

// The method `sasl` carries out a step of a SASL exchange. If the server has no users, it answers
// with CodeOK and no token, like ZooKeeper.
func (s *Server) sasl(c *conn, token, b []byte) ([]byte, int32) {
	if s.saslUsers == nil {
		return appendInt32(b, -1), CodeOK
	}
	if c.nonce == "" {
		var nonce [20]byte
		_, _ = rand.Read(nonce[:])
		c.nonce = hex.EncodeToString(nonce[:])
		return appendBuffer(b, fmt.Appendf(nil, "realm=%q,nonce=%q,charset=utf-8,algorithm=md5-sess", saslRealm, c.nonce)), CodeOK
	}
	said := saslFields(string(token))
	user := said["username"]
	password, known := s.saslUsers[user]
	response, proof := saslAnswers(user, password, said["realm"], c.nonce, said["cnonce"], said["digest-uri"])
	if !known || said["response"] != response || said["nonce"] != c.nonce || said["nc"] != "00000001" ||
		said["digest-uri"] != "zookeeper/"+saslRealm || said["realm"] != saslRealm {
		if s.enforces("sasl") {
			return b, CodeAuthRequired
		}
		return b, CodeAuthFailed
	}
	c.nonce = ""
	c.addID(identity{"sasl", user})
	return appendBuffer(b, []byte("rspauth="+proof)), CodeOK
}

// saslAnswers returns the expected response of a client, and the server's proof.
func saslAnswers(user, password, realm, nonce, cnonce, uri string) (response, proof string) {
	h := func(parts ...string) string {
		sum := md5.Sum([]byte(strings.Join(parts, ":")))
		return string(sum[:])
	}
	x := func(raw string) string { return hex.EncodeToString([]byte(raw)) }
	a1 := x(h(h(user, realm, password), nonce, cnonce))
	answer := func(method string) string {
		return x(h(a1, nonce, "00000001", cnonce, "auth", x(h(method, uri))))
	}
	return answer("AUTHENTICATE"), answer("")
}

// saslFields parses the response of a client. The values in the response must not contain commas.
func saslFields(s string) map[string]string {
	fields := map[string]string{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(part, "=")
		fields[name] = strings.Trim(value, `"`)
	}
	return fields
}
