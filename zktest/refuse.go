package zktest

import "slices"

// This file makes a server refuse requests, as a server of another version or with another
// configuration does.

// Refuse does not carry out the request, answers with code, and closes the
// connection, as ZooKeeper does with a client that it does not accept. Later
// requests on the connection get no answer.
func Refuse(code int32) Action {
	return Action{kind: actRefuse, code: code}
}

// WithRequiredAuth makes the server demand that clients authenticate, as
// ZooKeeper's enforce.auth.enabled does. Until a client has given credentials
// of one of the schemes (enforce.auth.schemes), or of any scheme that the server
// knows if there are none, everything but a handshake and credentials is refused
// with [CodeAuthRequired]. With the scheme "sasl", it is as
// sessionRequireClientSASLAuth, too.
func WithRequiredAuth(schemes ...string) Option {
	return func(s *Server) { s.authRequired, s.authSchemes = true, slices.Clone(schemes) }
}

// enforces reports whether the server demands credentials of this scheme.
func (s *Server) enforces(scheme string) bool {
	return s.authRequired && (len(s.authSchemes) == 0 || slices.Contains(s.authSchemes, scheme))
}

// WithoutRequests makes the server refuse these kinds of request with
// [CodeUnimplemented], like a version from before they existed.
func WithoutRequests(ops ...Op) Option {
	return func(s *Server) {
		for _, op := range ops {
			rule(opNames[op] != "" && op != OpConnect, "WithoutRequests: %v is not a request that a server may not know", op)
			s.unknown[op] = true
		}
	}
}

// refuse returns the action for a request that the options refuse. It is asked
// before the interceptor. Server.mu is held.
func (c *conn) refuse(r *Request) Action {
	switch {
	case c.s.authRequired && !r.Op.proves() && !slices.ContainsFunc(c.ids, func(id identity) bool { return id.scheme != "ip" && c.s.enforces(id.scheme) }):
		return Refuse(CodeAuthRequired)
	case c.s.unknown[r.Op]:
		return Refuse(CodeUnimplemented)
	}
	return Pass
}
