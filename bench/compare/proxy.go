package main

import (
	"io"
	"net"
	"time"
)

// This file makes a link with latency between the clients and the server. The choice of the latency
// is the business of main.go.

// A chunk is the data of one read. The proxy forwards it when it is due.
type chunk struct {
	due   time.Time
	bytes []byte
}

// startProxy listens on loopback and forwards all bytes to a server and back, each after the time
// oneWay. It models a link with latency that loses nothing and is never full.
func startProxy(to string, oneWay time.Duration) (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				server, err := net.Dial("tcp", to)
				if err != nil {
					client.Close()
					return
				}
				go carry(server, client, oneWay)
				carry(client, server, oneWay)
			}()
		}
	}()
	return l.Addr().String(), func() { l.Close() }, nil
}

// carry forwards all bytes from one end to the other, until either is closed.
func carry(to, from net.Conn, oneWay time.Duration) {
	under := make(chan chunk, 1<<14)
	go func() {
		defer to.Close()
		for c := range under {
			time.Sleep(time.Until(c.due))
			if _, err := to.Write(c.bytes); err != nil {
				from.Close()
				for range under { // discard the rest until the reader ends
				}
				return
			}
		}
	}()
	defer close(under)
	for {
		buf := make([]byte, 32<<10)
		n, err := from.Read(buf)
		if n > 0 {
			under <- chunk{time.Now().Add(oneWay), buf[:n]}
		}
		if err != nil {
			if err != io.EOF {
				from.Close()
			}
			return
		}
	}
}
