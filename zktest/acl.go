package zktest

import (
	"crypto/sha1"
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"
)

// This file has the access control of znodes: the identities that clients prove, the check of an
// ACL, and the rules for a new ACL. ops.go and reads.go say which permission a request needs.

// Permissions of an ACL.
const (
	permRead   int32 = 1
	permWrite  int32 = 2
	permCreate int32 = 4
	permDelete int32 = 8
	permAdmin  int32 = 16
	permAll    int32 = 31
)

// The type `identity` is a client's id under an authentication scheme.
type identity struct {
	scheme, id string
}

type acl struct {
	perms int32
	id    identity
}

var (
	anyone  = identity{"world", "anyone"}
	openACL = []acl{{permAll, anyone}}

	openACLBytes = appendACLs(nil, openACL)
)

// The function `allowed` reports whether `list` grants a permission in perms to a client with the
// identities ids.
func allowed(list []acl, perms int32, ids []identity) bool {
	if len(list) == 0 {
		return true
	}
	for _, a := range list {
		if a.perms&perms == 0 {
			continue
		}
		if a.id == anyone || slices.ContainsFunc(ids, a.id.matches) {
			return true
		}
	}
	return false
}

// The method `matches` reports whether id, from an entry of an ACL, covers the identity `who`.
// Either both are equal, or id is a network that contains the address in `who`.
func (id identity) matches(who identity) bool {
	if id.scheme != who.scheme {
		return false
	}
	if id.scheme != "ip" {
		return id.id == who.id
	}
	network, err := parseNetwork(id.id)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(who.id)
	return err == nil && network.Contains(addr.Unmap())
}

// parseNetwork parses the id of an ip ACL: an address, or an address, a slash and a number of bits.
func parseNetwork(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		return p.Masked(), err
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	addr = addr.Unmap()
	return addr.Prefix(addr.BitLen())
}

// fixACL returns `list` in the form that the server stores for a client with the identities ids:
// without repeated entries, and then with all proved identities of the client in place of "auth".
// It reports false if `list` is empty or an entry is invalid.
func fixACL(list []acl, ids []identity) ([]acl, bool) {
	if len(list) == 1 && list[0] == openACL[0] {
		return openACL, true // the most common list, shared by its znodes
	}
	var fixed []acl
	add := func(a acl) { fixed = append(fixed, a) }
	for i, a := range list {
		switch {
		case slices.Contains(list[:i], a):
		case a.id == anyone:
			add(a)
		case a.id.scheme == "auth":
			proved := false
			for _, id := range ids {
				if id.scheme != "ip" {
					add(acl{a.perms, id})
					proved = true
				}
			}
			if !proved {
				return nil, false
			}
		case a.id.scheme == "digest" && strings.Count(strings.TrimRight(a.id.id, ":"), ":") == 1: // Java's `split` drops empty parts at the end
			add(a)
		case (a.id.scheme == "sasl" || a.id.scheme == "x509") && a.id.id != "":
			add(a)
		case a.id.scheme == "ip":
			if _, err := parseNetwork(a.id.id); err != nil {
				return nil, false
			}
			add(a)
		default:
			return nil, false
		}
	}
	return fixed, len(fixed) > 0
}

// The function `authenticate` returns the identity that an auth request from the address ip proves.
func authenticate(scheme string, data []byte, ip string) (identity, bool) {
	switch scheme {
	case "digest":
		user, _, _ := strings.Cut(string(data), ":")
		sum := sha1.Sum(data)
		return identity{"digest", user + ":" + base64.StdEncoding.EncodeToString(sum[:])}, true
	case "ip":
		return identity{"ip", ip}, true
	}
	return identity{}, false
}

// The function `redact` returns `list` without the hashes of passwords, for a client that may read
// the znode but not administer it.
func redact(list []acl) []acl {
	list = slices.Clone(list)
	for i, a := range list {
		if user, _, ok := strings.Cut(a.id.id, ":"); ok && a.id.scheme == "digest" {
			list[i].id.id = user + ":x"
		}
	}
	return list
}

// userName returns the user of id in the reply to whoAmI.
func (id identity) userName() string {
	if id.scheme == "digest" {
		user, _, _ := strings.Cut(id.id, ":")
		return user
	}
	return id.id
}
