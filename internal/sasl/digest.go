package sasl

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// This file implements a client of DIGEST-MD5 (RFC 2831) for ZooKeeper:
//
//   - The client begins with an empty token. The server's challenge follows.
//   - The name of the service is "zookeeper/zk-sasl-md5" for every server.
//   - The exchange only authenticates (qop=auth). It does not protect later packets.
//   - The realm is "zk-sasl-md5". If a server offers only other realms, the client uses the first
//     realm that the server offers.
//   - The client sends no authorization id. The server derives that id from the user's name.

const (
	digestService = "zookeeper/zk-sasl-md5"
	digestRealm   = "zk-sasl-md5"
)

// The type `digest` is a client of DIGEST-MD5. Exchange returns a new digest for each exchange. A
// caller may also call Start and Next directly, for one exchange at a time.
type digest struct {
	user, password string
	nonce          func() string

	begun bool
	proof string // the rspauth that proves that the server knows the password; "" before Next has returned the response
}

// DigestMD5 returns a client of DIGEST-MD5 for a user.
func DigestMD5(user, password string) *digest {
	return &digest{user: user, password: password, nonce: rand.Text}
}

func (d *digest) Name() string { return "DIGEST-MD5" }

func (d *digest) Exchange() Mechanism {
	return &digest{user: d.user, password: d.password, nonce: d.nonce}
}

func (d *digest) Start(string) ([]byte, error) {
	d.begun, d.proof = true, ""
	return []byte{}, nil
}

// Next returns the response to the challenge. After that, Next checks the server's proof.
func (d *digest) Next(challenge []byte) ([]byte, error) {
	switch {
	case !d.begun:
		return nil, errors.New("Next before Start")
	case challenge == nil && d.proof == "":
		return nil, errors.New("the server sends no challenge: it is not set up for SASL (its JAAS file needs a section Server)")
	case challenge == nil:
		return nil, errors.New("the server has refused the credentials, or did not prove that it knows the password")
	}
	given, realms, err := parseDirectives(string(challenge))
	if err != nil {
		return nil, err
	}
	if d.proof == "" {
		return d.respond(given, realms)
	}
	if subtle.ConstantTimeCompare([]byte(given["rspauth"]), []byte(d.proof)) != 1 {
		return nil, errors.New("the server has not proved that it knows the password")
	}
	d.begun, d.proof = false, ""
	return nil, nil
}

// The method `respond` returns the response to a challenge.
func (d *digest) respond(given map[string]string, realms []string) ([]byte, error) {
	nonce, alg, qop := given["nonce"], given["algorithm"], given["qop"]
	switch {
	case nonce == "":
		return nil, errors.New("the challenge has no nonce")
	case alg != "md5-sess":
		return nil, fmt.Errorf("the challenge asks for the algorithm %q; want md5-sess", alg)
	case qop != "" && !slices.Contains(strings.Fields(strings.ReplaceAll(qop, ",", " ")), "auth"):
		return nil, errors.New("the challenge does not offer qop=auth")
	}
	realm := digestRealm
	if len(realms) > 0 && !slices.Contains(realms, realm) {
		realm = realms[0]
	}
	cnonce := d.nonce()
	key := digestKey(d.user, realm, d.password, nonce, cnonce)
	response, proof := digestResponses(key, nonce, cnonce, digestService)
	d.proof = proof
	var b strings.Builder
	b.WriteString("charset=utf-8")
	fmt.Fprintf(&b, ",username=%s,realm=%s,nonce=%s", quote(d.user), quote(realm), quote(nonce))
	fmt.Fprintf(&b, ",nc=00000001,cnonce=%s,digest-uri=%s", quote(cnonce), quote(digestService))
	fmt.Fprintf(&b, ",response=%s,qop=auth", response)
	return []byte(b.String()), nil
}

// digestKey returns HEX(H(A1)) of RFC 2831, section 2.1.2.1.
func digestKey(user, realm, password, nonce, cnonce string) string {
	secret := md5.Sum([]byte(latin(user) + ":" + latin(realm) + ":" + latin(password)))
	return hexMD5(string(secret[:]) + ":" + nonce + ":" + cnonce)
}

// digestResponses returns the client's response and the server's proof. Both are computed in the
// same way, except that the proof leaves out the name of the method.
func digestResponses(key, nonce, cnonce, service string) (response, proof string) {
	of := func(method string) string {
		return hexMD5(key + ":" + nonce + ":00000001:" + cnonce + ":auth:" + hexMD5(method+":"+service))
	}
	return of("AUTHENTICATE"), of("")
}

func hexMD5(s string) string {
	sum := md5.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// The function `latin` returns `s` in ISO 8859-1. If a character of `s` is not in ISO 8859-1, the
// result is in UTF-8. The secret is always computed from the result of this function, even if the
// charset of the exchange is UTF-8.
func latin(s string) string {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			return s
		}
		b = append(b, byte(r))
	}
	return string(b)
}

func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// parseDirectives parses a list of name=value, separated by commas. A value may be quoted. Only a
// realm may have several values.
func parseDirectives(s string) (d map[string]string, realms []string, err error) {
	const most = 4096
	if len(s) > most {
		return nil, nil, fmt.Errorf("a challenge of %d bytes", len(s))
	}
	directive := regexp.MustCompile(`(?s)^([^=]*[^=\s])\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^"\s,][^,]*)?(?:,|$))[\s,]*`)
	escaped := regexp.MustCompile(`(?s)\\(.)`)
	d = make(map[string]string)
	for s = strings.Trim(s, ", \t\r\n"); s != ""; {
		m := directive.FindStringSubmatch(s)
		if m == nil {
			return nil, nil, errors.New("a malformed challenge")
		}
		name := strings.ToLower(m[1])
		if d[name] = escaped.ReplaceAllString(m[2], "$1") + strings.TrimSpace(m[3]); name == "realm" {
			realms = append(realms, d[name])
		}
		s = s[len(m[0]):]
	}
	return d, realms, nil
}
