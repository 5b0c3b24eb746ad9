package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/kinds"
	"github.com/zsync/zsync/internal/look"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/txn"
)

// This file has zsync doctor: it searches for problems in the tree and in the servers' settings. It
// deletes leftovers only with --clean. doctorservers.go has the checks of --ensemble.

// exitFindings is the exit status of zsync doctor if it finds a problem.
const exitFindings = 1

func doctorCommand(c *client) *cobra.Command {
	h := newHolding(c)
	h.root = true
	d := &doctor{host: c.host, older: 24 * time.Hour}
	ensemble := false
	cmd := &cobra.Command{
		Use:   "doctor [PATH] [flags]",
		Short: "find deadlocks, orphans and wrong settings",
		Long: `zsync doctor examines all znodes at PATH and below it (default: /), and the servers. It
reports

  deadlocks: sessions that wait for each other in a circle, with the locks
  orphans: holders and waiters whose session the servers do not know, so that they
    are never deleted
  mixed kinds: a path that is used by two kinds of lock, which do not exclude
    each other
  poison: dead letters of queues, and elements that were received five times or
    more and never acknowledged
  leftovers: znodes of primitives that no longer exist, and receipts of killed
    processes, a day old (--older) or more
  parents whose sequence numbers are nearly used up
  settings of the servers that weaken guarantees, and settings that differ between
    servers. This needs the four-letter words conf, srvr and dump; jute.maxbuffer
    needs the admin server
  clocks of servers that are ahead of this machine's

If a process of a circle waits in one thread and can release in another, the circle is
no deadlock. zsync doctor reports a circle only if it sees the circle twice.

Without --clean, zsync doctor changes nothing. With --clean, it deletes leftovers that
are certainly zsync's: empty parents and receipts. It recognises them by their names,
their data and the mark of their parent. It asks first, unless --yes is given, and
deletes a leftover only if it has not changed. It lists the leftovers that it keeps,
with the reason.

With --ensemble, or --servers without a value, zsync doctor connects to each server separately. It
checks the properties on which zsync depends, and prints a line for each check:

  ok    the check passed
  warn  zsync works with a drawback, or the check was impossible
  fail  you must change something, or zsync cannot keep its promises

Run it before the first deployment, with the PATH, the session timeout (--session) and
the credentials of your programs. It checks the way to each server, the timeouts,
versions, settings, read-only mode, containers, the order of replies and events, sync,
transactions, multiRead, the size of packets, quotas, authentication, names, clocks,
and how long a write takes. It writes only below one znode of its own in PATH,
zsync-doctor-…, which it deletes at the end.

The exit status is 1 if zsync doctor finds a problem.`,
		Example: "  zsync doctor\n  zsync doctor /jobs\n  zsync doctor --clean --yes\n  zsync doctor --servers /jobs",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			if d.yes && !d.clean {
				return fail(exitUsage, "--yes goes with --clean")
			}
			if d.admin < 0 || d.admin > math.MaxUint16 {
				return fail(exitUsage, "--admin-port %d: must be from 0 to %d", d.admin, math.MaxUint16)
			}
			root := "/"
			if len(args) == 1 {
				root = args[0]
			}
			if ensemble {
				if d.clean {
					return fail(exitUsage, "--ensemble and --clean do not go together")
				}
				return d.ensemble(cmd, h, root)
			}
			t, err := h.begin(cmd.Context(), nil, root)
			if err != nil {
				return err
			}
			defer t.session.Close()
			d.session = t.session
			if err := d.examine(t.waiting, root); err != nil {
				return verdict(err, exitBusy)
			}
			d.servers(t.waiting, c)
			if t.waiting.Err() != nil { // an interrupted check says nothing about the servers
				return verdict(context.Cause(t.waiting), exitBusy)
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			for _, f := range d.findings {
				fmt.Fprintln(out, plain(f))
			}
			fmt.Fprintf(out, "looked at: %s, %s\n", count(d.znodes, "znode"), count(d.hosts, "server"))
			if err := outputError(out.Flush()); err != nil {
				return err
			}
			if d.clean {
				if err := d.cleanUp(t.waiting, cmd); err != nil {
					return verdict(err, exitBusy)
				}
			}
			if d.wrong {
				return &statusError{status: exitFindings}
			}
			return nil
		},
	}
	h.addTimeout(cmd)
	cmd.Flags().BoolVar(&ensemble, wordless, false, "check on each server what zsync depends on; --servers without a value is the same")
	cmd.Flags().BoolVar(&d.clean, "clean", false, "delete leftovers that are certainly zsync's")
	cmd.Flags().BoolVar(&d.yes, "yes", false, "do not ask before deleting")
	cmd.Flags().Var((*seconds)(&d.older), "older", "`TIME` without a write after which a znode counts as a leftover")
	cmd.Flags().IntVar(&d.admin, "admin-port", 8080, "`PORT` of the servers' admin server; 0 to skip it")
	return cmd
}

// The type `doctor` examines the znodes and the servers, and collects the findings.
type doctor struct {
	*host
	session    *zsync.Session
	clean, yes bool
	admin      int
	older      time.Duration // the minimum age of a leftover; the default is a day, because no process waits for a reply that long
	findings   []string
	wrong      bool // at least one finding is a problem
	znodes     int
	hosts      int
	leftovers  []leftover
	left       []string          // the znodes that zsync doctor keeps although they have names of leftovers, each with the reason
	sessions   map[string]string // the sessions of contenders, each with a path of a contender
	newest     time.Time         // the creation time of the newest contender
	first      map[string]int    // the settings of the first server that answered
	firstHost  string
	granted    time.Duration // the granted session timeout
}

// The type `leftover` is a znode that doctor may delete, with the zxids that it had when doctor
// examined it.
type leftover struct {
	path  string
	czxid int64
	mzxid int64
}

func (d *doctor) problem(format string, args ...any) {
	d.wrong = true
	d.findings = append(d.findings, "problem: "+fmt.Sprintf(format, args...))
}

func (d *doctor) note(format string, args ...any) {
	d.findings = append(d.findings, "note: "+fmt.Sprintf(format, args...))
}

// The method `examine` examines the znodes at root and below it.
func (d *doctor) examine(ctx context.Context, root string) error {
	t, err := d.survey(ctx, d.session, root)
	if err != nil {
		return err
	}
	d.znodes, d.sessions = t.Znodes, map[string]string{}
	for _, p := range t.Places {
		if kinds.Mixed(p.Kinds) {
			d.problem("mixed kinds: %s is used as %s: they do not see each other, so two are let in", p.Path, listed(p.Kinds))
		}
		d.numbers(p)
		for _, l := range p.Lines {
			if l.Dead != nil {
				d.problem("dead letters: %s has %d: see zsync queue dead %s", p.Path, *l.Dead, p.Path)
			}
			if l.Count != nil && *l.Count > 0 && l.Layout == "zsync" {
				if err := d.poison(ctx, p.Path); err != nil {
					return err
				}
			}
			if l.Kind == "queue" && strings.HasSuffix(l.State, ", paused") {
				d.note("paused: %s: its consumers wait for zsync queue resume %s", p.Path, p.Path)
			}
			if l.Failure != "" {
				d.problem("schedule: %s %s", p.Path, l.Failure)
			}
			if l.Kind == string(kinds.Partition) && l.Since == nil && strings.HasSuffix(l.State, "without an owner") {
				d.note("partition: %s has %s: they have one when their members have agreed, or are there again", p.Path, l.State)
			}
			if err := d.contender(ctx, l); err != nil {
				return err
			}
		}
	}
	if err := d.deadlocks(ctx, t); err != nil {
		return err
	}
	for _, path := range t.Strays {
		before := len(d.leftovers)
		if err := d.leave(ctx, path, isEmptyDir); err != nil {
			return err
		}
		if len(d.leftovers) > before {
			d.note("leftover: %s belongs to something that is not there", path)
		}
	}
	if err := d.receipts(ctx, root, t); err != nil {
		return err
	}
	for _, path := range t.Refused {
		d.note("not ours to read: %s", path)
	}
	if d.znodes == 0 {
		d.note("missing: %s does not exist, so nothing was examined there", root)
	}
	d.clock()
	return nil
}

// The method `clock` is the check of a server's clock: the server that created the newest
// contender.
func (d *doctor) clock() {
	if ahead := time.Until(d.newest); ahead > 2*time.Second {
		d.note("clocks: that of a server is %v ahead of this machine's, or more: waits and holds seem shorter than they are", ahead.Round(time.Second))
	}
}

// The method `contender` examines a contender.
func (d *doctor) contender(ctx context.Context, l look.Line) error {
	if l.Since == nil || l.Node == "" {
		return nil
	}
	if l.Since.After(d.newest) {
		d.newest = *l.Since
	}
	d.sessions[l.Session] = l.Path
	if l.Session != look.SessionText(0) {
		return nil
	}
	at := l.Znode()
	d.problem("orphan: %s %s, and belongs to no session: it stays there until you delete it", at, l.State)
	d.left = append(d.left, at+": another program made it, as zsync's own are ephemeral; delete it yourself if no program needs it")
	return nil
}

// The constant `often` is a number of attempts. An element that has been tried so many times counts
// as poison.
const often = 5

// The method `poison` is the check for elements of a queue that fail repeatedly.
func (d *doctor) poison(ctx context.Context, path string) error {
	st, err := zsync.NewQueue[[]byte](d.session, path, zsync.WithCodec(zsync.Raw)).Stats(ctx)
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) {
		return nil
	}
	if err == nil && st.Attempts >= often {
		d.problem("poison: %s has an element that was received %d times, and is not done: zsync queue recv --max-attempts, or WithMaxAttempts, sets such aside", path, st.Attempts)
	}
	return err
}

// The method `deadlocks` is the check for circles. It looks twice, and reports a circle that it
// sees both times. One look is not enough: it is no snapshot, so two processes that exchange their
// locks can look like a circle.
func (d *doctor) deadlocks(ctx context.Context, t *look.Tree) error {
	var first look.Graph
	for _, p := range t.Places {
		first.Add(p.Lines)
	}
	circles := first.Circles()
	if len(circles) == 0 {
		return nil
	}
	var second look.Graph
	seen := map[string]bool{}
	for _, circle := range circles {
		for _, step := range circle {
			if seen[step.Path] || step.Path == "" {
				continue
			}
			seen[step.Path] = true
			lines, err := look.At(ctx, d.session, step.Path)
			if err != nil && !errors.Is(err, zk.ErrNoAuth) {
				return err
			}
			second.Add(lines)
		}
	}
	still := map[string]bool{}
	for _, circle := range second.Circles() {
		still[second.Describe(circle)] = true
	}
	for _, circle := range circles {
		if words := first.Describe(circle); still[words] {
			d.problem("deadlock: %s", words)
		}
	}
	return nil
}

// The method `receipts` is the check for receipts whose process was killed before it could delete
// them.
func (d *doctor) receipts(ctx context.Context, root string, t *look.Tree) error {
	parents := map[string]bool{root: true}
	for _, p := range t.Places {
		parents[path.Dir(p.Path)] = true
		// The receipts of a Cond or a Once are among its contenders.
		if err := d.receiptsIn(ctx, p.Path, p.Names); err != nil {
			return err
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(parents)) {
		names, _, err := d.session.Children(ctx, dir)
		if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) {
			continue
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if !strings.HasSuffix(name, "-receipts") {
				continue
			}
			in := path.Join(dir, name)
			receipts, _, err := d.session.Children(ctx, in)
			if err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNoAuth) {
				return err
			}
			if err := d.receiptsIn(ctx, in, receipts); err != nil {
				return err
			}
		}
	}
	return nil
}

// receiptsIn records the receipts among the children of dir.
func (d *doctor) receiptsIn(ctx context.Context, dir string, names []string) error {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !txn.IsLogName(name) })
	if len(names) == 0 {
		return nil
	}
	data, _, err := d.session.Get(ctx, dir)
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) {
		return nil
	}
	if err != nil {
		return err
	}
	if !marks.IsDir(data) {
		d.left = append(d.left, fmt.Sprintf("%s in %s, which is no directory of zsync's: its data have no mark", count(len(names), "znode"), dir))
		return nil
	}
	before := len(d.leftovers)
	for _, name := range names {
		if err := d.leave(ctx, path.Join(dir, name), isReceipt); err != nil {
			return err
		}
	}
	if n := len(d.leftovers) - before; n > 0 {
		d.note("leftover: %s has %s of processes that were killed", dir, count(n, "receipt"))
	}
	return nil
}

// isEmptyDir returns "" if zsync has made a znode as a parent, and the znode stores nothing. If
// not, it returns the reason.
func isEmptyDir(data []byte, stat *zk.Stat) (not string) {
	if !marks.IsDir(data) || len(marks.Unmark(data)) > 0 {
		return "its data are not the mark of zsync's directories"
	}
	return ""
}

// isReceipt returns "" if a znode's data have the form of a receipt. If not, it returns the reason.
// The caller has checked the name.
func isReceipt(data []byte, stat *zk.Stat) (not string) {
	if !txn.IsLog(data, stat) {
		return "its data are not those of a receipt"
	}
	return ""
}

// The method `leave` records a znode with the name of a leftover. zsync doctor may delete the znode
// if four conditions hold: its data prove that zsync made it, it has no children, it belongs to no
// session, and its last write is at least d.older ago.
func (d *doctor) leave(ctx context.Context, path string, disproof func(data []byte, stat *zk.Stat) string) error {
	data, stat, err := d.session.Get(ctx, path)
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) {
		return nil
	}
	if err != nil {
		return err
	}
	why := disproof(data, stat)
	switch {
	case stat.EphemeralOwner != 0:
		why = "it belongs to a session"
	case why == "" && stat.NumChildren > 0:
		why = "it has children"
	case why == "" && time.Since(time.UnixMilli(stat.Mtime)) < d.older:
		why = fmt.Sprintf("it was written less than %v ago", d.older)
	}
	if why != "" {
		d.left = append(d.left, path+": "+why)
		return nil
	}
	d.leftovers = append(d.leftovers, leftover{path, stat.Czxid, stat.Mzxid})
	return nil
}

// cleanUp deletes the leftovers.
func (d *doctor) cleanUp(ctx context.Context, cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	for _, l := range d.left {
		fmt.Fprintln(out, "left alone:", plain(l))
	}
	if len(d.leftovers) == 0 {
		_, err := fmt.Fprintln(out, "there is nothing to delete")
		return outputError(err)
	}
	if !d.yes {
		for _, l := range d.leftovers {
			fmt.Fprintln(out, "would delete", plain(l.path))
		}
		fmt.Fprintf(out, "delete %s? [y/N] ", count(len(d.leftovers), "znode"))
		var answer input
		select {
		case answer = <-elementsOf(cmd.InOrStdin(), '\n'):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if a := strings.ToLower(strings.TrimSpace(string(answer.element))); a != "y" && a != "yes" {
			_, err := fmt.Fprintln(out, "nothing is deleted")
			return outputError(err)
		}
	}
	for _, l := range d.leftovers {
		what := "deleted"
		if err := l.remove(ctx, d.session); errors.Is(err, errChanged) {
			what = "left alone, as it has changed:"
		} else if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, what, plain(l.path)); err != nil {
			return outputError(err)
		}
	}
	return nil
}

var errChanged = errors.New("it has changed since it was shown")

// The method `remove` deletes the znode if it has not changed since its examination.
//
// First, `remove` reads the znode again, and compares the zxids of its creation and its last write.
// Then it deletes the znode at the version that it has read. One case remains: between the read and
// the deletion, another client deletes the znode and creates it again with the same version. Then
// doctor deletes the new znode. This cannot happen to a receipt, because no name of a receipt is
// used twice. It does not harm an empty parent, because a session that needs the parent creates it
// again.
func (l leftover) remove(ctx context.Context, s *zsync.Session) error {
	_, stat, err := s.Get(ctx, l.path)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	if err != nil {
		return err
	}
	if stat.Czxid != l.czxid || stat.Mzxid != l.mzxid || stat.NumChildren > 0 {
		return errChanged
	}
	_, err = s.Txn(ctx, &zk.DeleteRequest{Path: l.path, Version: stat.Version})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNotEmpty):
		return errChanged
	}
	return err
}

func listed(ks []kinds.Kind) string {
	words := make([]string, len(ks))
	for i, k := range ks {
		words[i] = string(k)
	}
	return strings.Join(words, " and ")
}

// The method `numbers` is the check whether a parent's 2³¹ sequence numbers are nearly used up.
func (d *doctor) numbers(p look.Place) {
	const nearly = 2_000_000_000
	greatest := int64(0)
	for _, name := range p.Names {
		if len(name) > 10 {
			if n, err := strconv.ParseInt(name[len(name)-10:], 10, 64); err == nil {
				greatest = max(greatest, n)
			}
		}
	}
	if greatest == 0 && len(p.Kinds) > 0 { // without contenders, the next sequence number is the number of children ever created
		greatest = p.Made
	}
	if greatest > nearly {
		d.problem("sequence numbers: those of %s have come to %d of 2147483647: make it anew, while nobody uses it", p.Path, greatest)
	}
}

// The method `servers` is the check of each server's settings and state.
func (d *doctor) servers(ctx context.Context, c *client) {
	list, _, _ := strings.Cut(c.servers, "/")
	hosts := strings.Split(list, ",")
	d.hosts = len(hosts)
	if len(hosts) < 3 {
		d.note("servers: %s in the connect string: an ensemble of three goes on when one of them fails", count(len(hosts), "server"))
	}
	d.granted = d.session.Timeout()
	if d.granted > 0 && d.granted != c.session {
		d.note("session timeout: %v was asked for, the servers grant %v", c.session, d.granted)
	}
	for _, host := range hosts {
		host = strings.TrimSpace(host)
		if settings, err := d.conf(ctx, host); err != nil {
			d.note("%s does not tell its settings: %v", host, err)
		} else {
			d.settings(host, settings)
			d.differences(host, settings)
		}
		d.state(ctx, host)
		d.adminServer(ctx, host)
	}
}

// The method `differences` compares the settings of a server with the settings of the first server.
func (d *doctor) differences(host string, settings map[string]int) {
	if d.first == nil {
		d.first, d.firstHost = settings, host
		return
	}
	for _, name := range []string{"tickTime", "initLimit", "syncLimit", "minSessionTimeout", "maxSessionTimeout"} {
		a, inFirst := d.first[name]
		if b, ok := settings[name]; ok && inFirst && a != b {
			d.problem("%s is %d at %s and %d at %s: what is granted depends on which of them leads", name, a, d.firstHost, b, host)
		}
	}
}

// The method `state` is the check of a server's state, and of the sessions that the leader knows.
func (d *doctor) state(ctx context.Context, host string) {
	if text, err := d.ask(ctx, host, "srvr"); err == nil { // if srvr fails, conf has failed, too, and the method `servers` has reported that
		d.judgeState(ctx, host, text)
	}
}

// judgeState checks a server's answer to srvr.
func (d *doctor) judgeState(ctx context.Context, host, text string) {
	mode := ""
	for line := range strings.Lines(text) {
		if m, ok := strings.CutPrefix(line, "Mode: "); ok {
			mode = strings.TrimSpace(m)
		}
	}
	if mode == "standalone" && d.hosts > 1 {
		d.problem("%s is standalone, though the connect string names %d servers: those who connect to it and to another do not see each other", host, d.hosts)
	}
	if strings.Contains(text, "not currently serving requests") {
		d.problem("%s serves nobody: it has no quorum", host)
	}
	if mode != "leader" && mode != "standalone" {
		return
	}
	dump, err := d.ask(ctx, host, "dump")
	if err != nil {
		d.note("%s: no search for orphans: %v", host, err)
	}
	if !strings.Contains(dump, "Sessions with Ephemerals") {
		return
	}
	for id, at := range d.sessions {
		// If the dump does not list a session, it may be a session of another kind, or it may have
		// ended since. So look again.
		if id == look.SessionText(0) || id == look.NoSession || strings.Contains(dump, id+":\n") {
			continue
		}
		lines, err := look.At(ctx, d.session, at)
		if err == nil && slices.ContainsFunc(lines, func(l look.Line) bool { return l.Session == id }) {
			d.problem("orphan: at %s is a contender of session %s, which the leader %s does not know", at, id, host)
		}
	}
}

// The constant `packet` is the default of the maximum packet size, in the library and in ZooKeeper.
const packet = 0xfffff

// adminServer checks facts that only the admin server has. It returns true if there is an admin
// server.
func (d *doctor) adminServer(ctx context.Context, host string) (there bool) {
	if d.admin == 0 {
		return false
	}
	name, _ := hostAndPort(host)
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	url := "http://" + net.JoinHostPort(name, strconv.Itoa(d.admin)) + "/commands/system_properties"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	sent := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false // an admin server is optional
	}
	defer resp.Body.Close()
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		if off := at.Sub(sent); off > 3*time.Second || off < -3*time.Second {
			d.note("clocks: that of %s is %v off this machine's", host, off.Round(time.Second))
		}
	}
	var properties map[string]any
	if resp.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&properties) != nil {
		return false
	}
	if n, err := strconv.ParseInt(fmt.Sprint(properties["jute.maxbuffer"]), 0, 64); err == nil && n < packet {
		d.problem("%s: jute.maxbuffer is %d, less than %d: listings of long lines and large values fail, and end the connection", host, n, packet)
	}
	return true
}

// The method `settings` is the check of a server's settings.
func (d *doctor) settings(host string, settings map[string]int) {
	tick := time.Duration(settings["tickTime"]) * time.Millisecond
	if limit := time.Duration(settings["syncLimit"]) * tick; limit > max(d.granted, session.SyncLimit) {
		d.note("%s: syncLimit × tickTime is %v, more than the session timeout of %v, and than %v: a server that is cut off goes on answering for as long", host, limit, d.granted, session.SyncLimit)
	}
	if shortest := time.Duration(settings["minSessionTimeout"]) * time.Millisecond; tick > 0 && shortest > 0 && shortest < 2*tick {
		d.problem("%s: minSessionTimeout is %v, less than two ticks of %v: a session may end earlier than it is counted on", host, shortest, tick)
	}
	if most, ok := settings["maxClientCnxns"]; ok && most > 0 && most < 10 {
		d.note("%s: maxClientCnxns is %d: so many processes of one machine can connect, and no more", host, most)
	}
}

// hostAndPort splits an entry of a connect string. The port may be missing.
func hostAndPort(server string) (host, port string) {
	if host, port, err := net.SplitHostPort(server); err == nil {
		return host, port
	}
	return strings.Trim(server, "[]"), "2181"
}

// The method `ask` sends a four-letter word to a server, and returns the answer.
func (h *host) ask(ctx context.Context, server, word string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	conn, err := h.dialServer(ctx, net.JoinHostPort(hostAndPort(server)))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })()
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	const most = 1 << 22
	data, err := io.ReadAll(io.LimitReader(conn, most+1))
	if len(data) > most {
		err = fmt.Errorf("the answer to %s is longer than %d bytes", word, most)
	}
	if err != nil && (len(data) == 0 || word == "dump") { // a part of a dump lacks sessions
		return "", err
	}
	return string(data), nil
}

// The method `conf` returns a server's settings, from its answer to conf.
func (h *host) conf(ctx context.Context, host string) (map[string]int, error) {
	text, err := h.ask(ctx, host, "conf")
	if err != nil {
		return nil, err
	}
	settings := map[string]int{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if n, err := strconv.Atoi(value); err == nil {
			settings[name] = n
		}
	}
	if len(settings) == 0 {
		return nil, fmt.Errorf("%s", printable(strings.TrimSpace(text)))
	}
	return settings, nil
}
