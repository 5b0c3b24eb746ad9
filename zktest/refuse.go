package zktest

import "slices"

// This file makes a server refuse requests, like a server of another version or with another
// configuration. fault.go has the faults of the network.

// Refuse answers the request with `code`, does not carry the request out, and closes the
// connection, as ZooKeeper does with a client that it does not accept. Later requests on the
// connection get no reply.
func Refuse(code int32) Action {
	return Action{kind: actRefuse, code: code}
}

// WithRequiredAuth makes the server demand that clients authenticate, as ZooKeeper does with
// enforce.auth.enabled. The server refuses all requests with [CodeAuthRequired], except handshakes
// and credentials, until the client has given credentials of a scheme in `schemes`
// (enforce.auth.schemes). If there are no schemes, any credentials that the server accepts are
// enough. With the scheme "sasl", the option acts like sessionRequireClientSASLAuth.
func WithRequiredAuth(schemes ...string) Option {
	return func(s *Server) { s.authRequired, s.authSchemes = true, slices.Clone(schemes) }
}

// The method `enforces` reports whether credentials of this scheme fulfil the demand of
// WithRequiredAuth.
func (s *Server) enforces(scheme string) bool {
	return s.authRequired && (len(s.authSchemes) == 0 || slices.Contains(s.authSchemes, scheme))
}

// WithoutRequests makes the server refuse these kinds of request with [CodeUnimplemented], like an
// older version that does not have them.
func WithoutRequests(ops ...Op) Option {
	return func(s *Server) {
		for _, op := range ops {
			rule(opNames[op] != "" && op != OpConnect, "WithoutRequests: %v is not a request that a server may not know", op)
			s.unknown[op] = true
		}
	}
}

// The method `refuse` returns the action for a request that the options refuse, and Pass for other
// requests. It is called before the interceptor. Server.mu is held.
func (c *conn) refuse(r *Request) Action {
	switch {
	case c.s.authRequired && !r.Op.proves() && !slices.ContainsFunc(c.ids, func(id identity) bool { return id.scheme != "ip" && c.s.enforces(id.scheme) }):
		return Refuse(CodeAuthRequired)
	case c.s.unknown[r.Op]:
		return Refuse(CodeUnimplemented)
	}
	return Pass
}
