package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/kinds"
)

// exitFindings is the exit status of doctor when something is wrong.
const exitFindings = 1

func doctorCommand(c *client) *cobra.Command {
	h := newHolding(c)
	cmd := &cobra.Command{
		Use:   "doctor [PATH] [flags]",
		Short: "look for what is wrong below a path, and with the servers",
		Long: `doctor looks at everything at PATH and below it (default: /), and at the
servers, and tells

  deadlocks: sessions that wait for each other in a circle, with the locks
  mixed kinds: a path that is used as two kinds of lock, which do not see each
    other, so that two are let in
  dead letters of queues
  leftovers: znodes that belong to something that is not there any more
  parents whose sequence numbers are nearly used up
  settings of the servers that weaken what zsync promises, as far as they tell
    them: the four-letter word conf must be allowed

It changes nothing. A session that has ended needs no looking for: the servers
remove what it held. The exit status is 1 if something is wrong.`,
		Example: "  zsync doctor\n  zsync doctor /jobs",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			root := "/"
			if len(args) == 1 {
				root = args[0]
			}
			t, err := h.begin(cmd.Context(), root, nil)
			if err != nil {
				return err
			}
			defer t.session.Close()
			d := &doctor{session: t.session}
			if err := d.examine(t.waiting, root); err != nil {
				return verdict(err, exitBusy)
			}
			d.servers(t.waiting, c)
			out := bufio.NewWriter(cmd.OutOrStdout())
			for _, f := range d.findings {
				fmt.Fprintln(out, plain(f))
			}
			fmt.Fprintf(out, "looked at: %s, %s\n", count(d.znodes, "znode"), count(d.hosts, "server"))
			if err := outputError(out.Flush()); err != nil {
				return err
			}
			if d.wrong {
				return &statusError{status: exitFindings}
			}
			return nil
		},
	}
	h.addTimeout(cmd)
	return cmd
}

// A doctor collects what it finds.
type doctor struct {
	session  *zsync.Session
	findings []string
	wrong    bool // one of them is more than a note
	znodes   int
	hosts    int
}

func (d *doctor) problem(format string, args ...any) {
	d.wrong = true
	d.findings = append(d.findings, "problem: "+fmt.Sprintf(format, args...))
}

func (d *doctor) note(format string, args ...any) {
	d.findings = append(d.findings, "note: "+fmt.Sprintf(format, args...))
}

// examine looks at the znodes.
func (d *doctor) examine(ctx context.Context, root string) error {
	v, err := explore(ctx, d.session, root)
	if err != nil {
		return err
	}
	d.znodes = v.znodes
	var waits waitGraph
	for _, p := range v.places {
		if kinds.Mixed(p.kinds) {
			d.problem("mixed kinds: %s is used as %s: they do not see each other, so two are let in", p.path, listed(p.kinds))
		}
		d.numbers(p)
		lines, err := lookAt(ctx, d.session, p.path)
		if refused(err) {
			v.refused = append(v.refused, p.path)
		} else if err != nil {
			return err
		}
		for _, l := range lines {
			if l.Dead != nil {
				d.problem("dead letters: %s has %d: see zsync queue dead %s", p.path, *l.Dead, p.path)
			}
		}
		waits.add(lines)
	}
	for _, circle := range waits.circles() {
		d.problem("deadlock: %s", circle)
	}
	for _, path := range v.strays {
		d.note("leftover: %s belongs to something that is not there", path)
	}
	for _, path := range v.refused {
		d.note("not ours to read: %s", path)
	}
	return nil
}

func listed(ks []kinds.Kind) string {
	words := make([]string, len(ks))
	for i, k := range ks {
		words[i] = string(k)
	}
	return strings.Join(words, " and ")
}

// numbers looks at the sequence numbers of a parent, of which there are 2³¹.
func (d *doctor) numbers(p place) {
	const nearly = 2_000_000_000
	greatest := int64(0)
	for _, name := range p.names {
		if len(name) > 10 {
			if n, err := strconv.ParseInt(name[len(name)-10:], 10, 64); err == nil {
				greatest = max(greatest, n)
			}
		}
	}
	if greatest > nearly {
		d.problem("sequence numbers: those of %s have come to %d of 2147483647: make it anew, while nobody uses it", p.path, greatest)
	}
}

// A waitGraph says which session waits for which.
type waitGraph struct {
	names map[string]string // what sessions call themselves
	waits map[string][]wait
}

// A wait is one session's for another, which holds what it wants.
type wait struct{ path, holder string }

// add takes note of who waits at a path, and for whom.
func (g *waitGraph) add(lines []statusLine) {
	if g.names == nil {
		g.names, g.waits = map[string]string{}, map[string][]wait{}
	}
	for _, l := range lines {
		switch l.Kind {
		case "lock", "read-write lock", "kazoo lock", "semaphore", "kazoo semaphore", "election":
		default:
			continue
		}
		g.names[l.Session] = l.Owner
		if l.Holding || l.Since == nil {
			continue
		}
		for _, holder := range lines {
			if holder.Holding && holder.Kind == l.Kind && holder.Session != l.Session {
				g.waits[l.Session] = append(g.waits[l.Session], wait{l.Path, holder.Session})
			}
		}
	}
}

// circles describes each circle of sessions that wait for each other, once.
func (g *waitGraph) circles() (found []string) {
	done := map[string]bool{}
	var sessions []string
	for s := range g.waits {
		sessions = append(sessions, s)
	}
	slices.SortFunc(sessions, func(a, b string) int { return cmp.Or(cmp.Compare(g.names[a], g.names[b]), cmp.Compare(a, b)) })
	var trail []wait // where it went on from the session before, and to whom
	var follow func(session string)
	follow = func(session string) {
		if i := slices.IndexFunc(trail, func(w wait) bool { return w.holder == session }); i >= 0 && i < len(trail)-1 {
			var words []string
			for j := i; j < len(trail)-1; j++ {
				words = append(words, fmt.Sprintf("%s waits at %s for %s", printable(g.names[trail[j].holder]), trail[j+1].path, printable(g.names[trail[j+1].holder])))
			}
			found = append(found, strings.Join(words, ", "))
			return
		}
		if done[session] {
			return
		}
		for _, w := range g.waits[session] {
			trail = append(trail, w)
			follow(w.holder)
			trail = trail[:len(trail)-1]
		}
		done[session] = true
	}
	for _, s := range sessions {
		trail = append(trail[:0], wait{holder: s})
		follow(s)
	}
	return found
}

// servers asks each server for its settings.
func (d *doctor) servers(ctx context.Context, c *client) {
	list, _, _ := strings.Cut(c.servers, "/")
	hosts := strings.Split(list, ",")
	d.hosts = len(hosts)
	if len(hosts) < 3 {
		d.note("servers: %s in the connect string: an ensemble of three goes on when one of them fails", count(len(hosts), "server"))
	}
	if granted := d.session.Timeout(); granted > 0 && granted != c.session {
		d.note("session timeout: %v was asked for, the servers grant %v", c.session, granted)
	}
	for _, host := range hosts {
		host = strings.TrimSpace(host)
		settings, err := conf(ctx, host)
		if err != nil {
			d.note("%s does not tell its settings: %v", host, err)
			continue
		}
		d.settings(host, settings)
	}
}

// settings judges those of one server.
func (d *doctor) settings(host string, settings map[string]int) {
	tick := time.Duration(settings["tickTime"]) * time.Millisecond
	if limit := time.Duration(settings["syncLimit"]) * tick; limit > 0 && limit > d.session.Timeout() {
		d.note("%s: syncLimit × tickTime is %v, more than the session timeout of %v: a server that is cut off goes on answering for as long", host, limit, d.session.Timeout())
	}
	if shortest := time.Duration(settings["minSessionTimeout"]) * time.Millisecond; tick > 0 && shortest > 0 && shortest < 2*tick {
		d.problem("%s: minSessionTimeout is %v, less than two ticks of %v: a session may end earlier than it is counted on", host, shortest, tick)
	}
	if most, ok := settings["maxClientCnxns"]; ok && most > 0 && most < 10 {
		d.note("%s: maxClientCnxns is %d: so many processes of one machine can connect, and no more", host, most)
	}
}

// conf asks a server for its settings, with a four-letter word.
func conf(ctx context.Context, host string) (map[string]int, error) {
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(host, "2181")
	}
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if _, err := io.WriteString(conn, "conf"); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(conn, 1<<16))
	if err != nil && len(data) == 0 {
		return nil, err
	}
	settings := map[string]int{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if n, err := strconv.Atoi(value); err == nil {
			settings[name] = n
		}
	}
	if len(settings) == 0 {
		return nil, fmt.Errorf("%s", printable(strings.TrimSpace(string(data))))
	}
	return settings, nil
}
