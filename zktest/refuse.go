package zktest

// Refuse does not carry out the request, answers with code, and closes the
// connection, as ZooKeeper does where a client is not welcome. What the client
// has sent behind the request has no answer.
func Refuse(code int32) Action {
	return Action{kind: actRefuse, code: code}
}

// WithRequiredAuth makes the server demand that clients authenticate, as
// ZooKeeper's enforce.auth.enabled does. Until a client has given credentials
// of a scheme that the server knows, everything but a handshake is refused with
// [CodeAuthRequired].
func WithRequiredAuth() Option {
	return func(s *Server) { s.authRequired = true }
}

// WithoutRequests makes the server one that does not know these kinds of
// request, as a version from before they existed. It refuses them with
// [CodeUnimplemented].
func WithoutRequests(ops ...Op) Option {
	return func(s *Server) {
		for _, op := range ops {
			rule(opNames[op] != "" && op != OpConnect, "WithoutRequests: %v is not a request that a server may not know", op)
			s.unknown[op] = true
		}
	}
}

// refuse returns what becomes of r before anything else looks at it.
// Server.mu is held.
func (c *conn) refuse(r *Request) Action {
	switch {
	case c.s.authRequired && r.Op != OpAuth && len(c.ids) == 1: // its address alone
		return Refuse(CodeAuthRequired)
	case c.s.unknown[r.Op]:
		return Refuse(CodeUnimplemented)
	}
	return Pass
}
