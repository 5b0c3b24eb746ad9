package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync/zktest"
)

// This file has zsync server: it starts a ZooKeeper server in memory, and causes faults. Package
// zktest has the server itself.

func serverCommand(h *host) *cobra.Command {
	f := &faults{host: h}
	cmd := &cobra.Command{
		Use:   "server [flags]",
		Short: "serve ZooKeeper's protocol from memory, for development",
		Long: `zsync server serves ZooKeeper's protocol to any client, until it is interrupted.
Everything is in memory and lost at the end: use it for development and tests.

Try programs in any language against the faults of production: --latency delays every
packet; --disconnect-every drops all connections at that interval; --expire-every ends
all sessions; --partition-every cuts off the oldest session, and neither its client nor
the server notices. --lose-replies picks requests at random: each is carried out, and
its connection drops before the reply. zsync server reports each fault on standard
error.`,
		Example: `  zsync server --listen 127.0.0.1:2181
  zsync server --latency 20ms --disconnect-every 30s --lose-replies 1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.serve(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:2181", "`ADDRESS` to listen on; port 0: any that is free")
	flags.Var(&f.shortest, "min-session", "grant session timeouts of at least `TIME` (default: 40ms, or no limit with --max-session)")
	flags.Var(&f.longest, "max-session", "grant session timeouts of at most `TIME` (default: 1m, or no limit with --min-session)")
	flags.Var(&f.latency, "latency", "delay every packet by `TIME`")
	flags.Var(&f.disconnect, "disconnect-every", "drop all connections every `TIME`")
	flags.Var(&f.expire, "expire-every", "end all sessions every `TIME`")
	flags.Var(&f.partition, "partition-every", "cut off the oldest session every `TIME`")
	flags.Float64Var(&f.loseReplies, "lose-replies", 0, "lose the reply to a `PERCENTAGE` of the requests")
	return cmd
}

// The type `faults` has the flags of zsync server.
type faults struct {
	*host
	listen                      string
	shortest, longest           seconds
	latency, disconnect, expire seconds
	partition                   seconds
	loseReplies                 float64
}

func (f *faults) serve(out io.Writer) error {
	opts := []zktest.Option{zktest.WithAddr(f.listen)}
	switch {
	case !(f.loseReplies >= 0 && f.loseReplies <= 100):
		return fail(exitUsage, "--lose-replies %v: want from 0 to 100", f.loseReplies)
	case f.shortest > 0 && f.longest > 0 && f.shortest > f.longest:
		return fail(exitUsage, "--min-session %v is longer than --max-session %v", &f.shortest, &f.longest)
	case f.shortest > 0 || f.longest > 0:
		shortest, longest := max(time.Duration(f.shortest), time.Millisecond), time.Duration(f.longest)
		if longest == 0 {
			longest = math.MaxInt32 * time.Millisecond
		}
		opts = append(opts, zktest.WithSessionTimeouts(shortest, longest))
	}
	if err := checkAddress(f.listen); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	f.hear(stop, os.Interrupt, syscall.SIGTERM)
	srv, err := newServer(opts)
	if err != nil {
		return fail(exitServers, "server: %w", err)
	}
	f.bring(srv)
	if _, err := fmt.Fprintf(out, "serving on %s, from memory\n", srv.Addr()); err != nil {
		srv.Close()
		return outputError(err)
	}
	<-stop
	return srv.Close()
}

// checkAddress returns an error if addr is no valid address to listen on.
func checkAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fail(exitUsage, "--listen: %w", err)
	}
	return nil
}

// newServer makes the server. If the server cannot listen, zktest panics, and newServer recovers. A
// check in advance would not be reliable.
func newServer(opts []zktest.Option) (srv *zktest.Server, err error) {
	defer func() {
		if p := recover(); p != nil {
			why, ok := strings.CutPrefix(fmt.Sprint(p), "zktest: cannot listen: ")
			if !ok {
				panic(p)
			}
			err = errors.New(why)
		}
	}()
	return zktest.NewServer(opts...), nil
}

// noArgs is cobra.NoArgs with a clearer message.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fail(exitUsage, "want: %s", cmd.UseLine())
	}
	return nil
}

// The method `bring` causes the faults until the process ends.
func (f *faults) bring(srv *zktest.Server) {
	srv.SetLatency(time.Duration(f.latency))
	if f.loseReplies > 0 {
		srv.Intercept(func(r zktest.Request) zktest.Action {
			// Do not lose replies to handshakes and pings, because tests do not want such faults.
			if r.Op == zktest.OpConnect || r.Op == zktest.OpPing || rand.Float64()*100 >= f.loseReplies {
				return zktest.Pass
			}
			f.say(fmt.Errorf("session %#x: the reply to %v %s is lost", uint64(r.Session), r.Op, r.Path))
			return zktest.DropReply
		})
	}
	again := func(every seconds, what string, do func(session int64)) {
		if every == 0 {
			return
		}
		go func() {
			for range time.Tick(time.Duration(every)) {
				sessions := srv.Sessions()
				for _, id := range sessions {
					do(id)
				}
				f.say(fmt.Errorf("%s: %s", count(len(sessions), "session"), what))
			}
		}()
	}
	if f.partition > 0 {
		go func() {
			cut := map[int64]bool{}
			for range time.Tick(time.Duration(f.partition)) {
				for _, id := range srv.Sessions() { // the oldest session first
					if !cut[id] {
						cut[id] = true
						srv.Partition(id)
						f.say(fmt.Errorf("session %#x: cut off", uint64(id)))
						break
					}
				}
			}
		}()
	}
	again(f.disconnect, "disconnected", srv.Disconnect)
	again(f.expire, "expired", srv.Expire)
}
