package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"

	"github.com/zsync/zsync/internal/probe"
	"github.com/zsync/zsync/internal/wire"
)

// This file has zsync doctor --ensemble. It checks each server for the features that zsync needs,
// and compares the servers. doctorchecks.go has the checks that use znodes.

// The type `grade` is the result of a check.
type grade int

const (
	fine   grade = iota
	doubt        // zsync works with a drawback, or the check was impossible
	unfit        // zsync cannot keep its promises, or does not work
	grades       // the number of grades
)

func (g grade) String() string { return [...]string{"ok", "warn", "fail"}[g] }

// The constant `answering` is the time limit for a server's answer to a request of a check.
const answering = 5 * time.Second

// The type `examination` checks all servers.
type examination struct {
	*doctor
	client  *client
	cfg     probe.Config
	acl     []zk.ACL
	out     io.Writer
	broken  error  // the first error of a write to `out`
	base    string // the path with the chroot
	own     string // the parent of all znodes that the examination creates; "" before the call of `begin`
	unsure  bool   // the znode `own` may appear later, because the request that creates it had no reply
	servers []*examined
	counts  [grades]int
}

// The type `examined` has the facts about one server.
type examined struct {
	host    string
	reached bool
	granted time.Duration
	number  byte // the server's number in its session ids
	version string
	mode    string // such as "leader"; "" if the server does not answer srvr
	demands bool   // the server demands credentials
	asked   bool   // the field `demands` is known
	addrs   []string
}

// The method `ensemble` examines the servers. It creates its znodes below the path root.
func (d *doctor) ensemble(cmd *cobra.Command, h *holding, root string) (err error) {
	e, err := newExamination(d, h.client, cmd.OutOrStdout(), root)
	if err != nil {
		return err
	}
	if waitLimit(h.timeout) == noWait {
		return fail(exitUsage, "--timeout 0: there is no --try here; leave --timeout out to wait without a limit")
	}
	ctx, stop := untilSignalOf(cmd.Context(), h.hearAll())
	defer stop()
	ctx, stopTimer := within(ctx, h.timeout, "gave up after %v")
	defer stopTimer()
	e.all(ctx)
	if left := e.cleanUp(context.WithoutCancel(ctx)); left != nil {
		e.say(fmt.Errorf("%s could not be removed; delete it yourself: %w", e.own, left))
		e.counts[unfit]++
	}
	switch {
	case ctx.Err() != nil:
		return verdict(context.Cause(ctx), exitBusy)
	case e.broken != nil:
		return outputError(e.broken)
	}
	if _, err := fmt.Fprintf(e.out, "%s: %s ok, %s, %s\n", count(len(e.servers), "server"),
		count(e.counts[fine], "check"), count(e.counts[doubt], "warning"), count(e.counts[unfit], "failure")); err != nil {
		return outputError(err)
	}
	if e.counts[unfit] > 0 {
		return &statusError{status: exitFindings}
	}
	return nil
}

func newExamination(d *doctor, c *client, out io.Writer, root string) (*examination, error) {
	if c.servers == "" {
		return nil, errNoServers
	}
	if !strings.HasPrefix(root, "/") {
		return nil, fail(exitUsage, "path %q is relative; want one that begins with /", root)
	}
	list, chroot, _ := strings.Cut(c.servers, "/")
	e := &examination{doctor: d, client: c, out: out, base: path.Join("/", chroot, root)}
	e.cfg = probe.Config{Dial: func(ctx context.Context, addr string) (net.Conn, error) { return d.dialServer(ctx, addr) }, Timeout: c.session, Limit: answering}
	auths, err := c.credentials()
	if err != nil {
		return nil, err
	}
	for _, a := range auths {
		scheme, credentials, _ := strings.Cut(a, ":")
		e.cfg.Auths = append(e.cfg.Auths, probe.Auth{Scheme: scheme, Credentials: []byte(credentials)})
	}
	mechanism, err := c.sasl.mechanism(c.getenv("ZSYNC_SASL_PASSWORD"))
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		e.cfg.SASL = mechanism
	}
	if e.cfg.TLS, err = c.tls.config(); err != nil {
		return nil, err
	}
	if e.acl, err = c.accessList(e.hasCredentials()); err != nil {
		return nil, err
	}
	for host := range strings.SplitSeq(list, ",") {
		e.servers = append(e.servers, &examined{host: strings.TrimSpace(host)})
	}
	d.hosts = len(e.servers)
	return e, nil
}

func (e *examination) hasCredentials() bool { return len(e.cfg.Auths) > 0 || e.cfg.SASL != nil }

// The method `report` prints the result of a check at once.
func (e *examination) report(g grade, host, check, format string, args ...any) {
	e.counts[g]++
	text := fmt.Sprintf("%s: %s: %s", host, check, fmt.Sprintf(format, args...))
	if _, err := fmt.Fprintf(e.out, "%-4s  %s\n", g, plain(text)); err != nil {
		e.broken = cmp.Or(e.broken, err)
	}
}

// allServers is the host in the result of a check of all servers.
const allServers = "all"

// The method `all` makes every check. It stops early if ctx ends or the output fails.
func (e *examination) all(ctx context.Context) {
	for _, a := range e.servers {
		e.one(ctx, a)
		if ctx.Err() != nil || e.broken != nil {
			return
		}
	}
	e.timeouts()
	e.versions()
	e.credentials()
	e.names()
	e.quotas(ctx)
	if n := len(e.servers); n < 3 {
		e.report(doubt, allServers, "servers", "%s in the connect string: an ensemble of three goes on when one of them fails", count(n, "server"))
	}
}

// The method `one` makes the checks of one server.
func (e *examination) one(ctx context.Context, a *examined) {
	e.lookUp(ctx, a)
	conn := e.reach(ctx, a)
	e.words(ctx, a)
	if conn == nil || !e.authentication(ctx, a, conn) {
		return
	}
	if e.own == "" && !e.begin(ctx, a) {
		conn.Close()
		return
	}
	v := &visit{e: e, ctx: ctx, a: a, conn: conn}
	defer v.leave()
	v.all()
}

// The method `open` connects to a server. If the server does not answer the handshake in time,
// `open` tries once more. A comment in visit.all explains why.
func (e *examination) open(ctx context.Context, a *examined, cfg probe.Config) (*probe.Conn, error) {
	addr := net.JoinHostPort(hostAndPort(a.host))
	conn, err := probe.Open(ctx, cfg, addr)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		conn, err = probe.Open(ctx, cfg, addr)
	}
	return conn, err
}

// lookUp checks the addresses of a server's name.
func (e *examination) lookUp(ctx context.Context, a *examined) {
	host, port := hostAndPort(a.host)
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	addrs := []string{host}
	if net.ParseIP(host) == nil {
		var err error
		if addrs, err = e.lookup(ctx, host); err != nil {
			e.report(unfit, a.host, "name", "it has no address: %v; correct the name, or the name service", err)
			return
		}
	}
	families := map[bool]int{}
	for _, addr := range addrs {
		a.addrs = append(a.addrs, net.JoinHostPort(addr, port))
		families[strings.Contains(addr, ":")]++
	}
	if families[true] > 1 || families[false] > 1 {
		e.report(unfit, a.host, "name", "it has %d addresses, %s: list each server by a name of its own", len(addrs), strings.Join(addrs, " and "))
		return
	}
	e.report(fine, a.host, "name", "it is the address %s", strings.Join(addrs, " or "))
}

// The method `reach` opens a session at a server, and checks how fast the server answers and which
// session timeout it grants.
func (e *examination) reach(ctx context.Context, a *examined) *probe.Conn {
	begun := time.Now()
	conn, err := e.open(ctx, a, e.cfg)
	took := time.Since(begun)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		if mode, _ := e.ask(ctx, a.host, "isro"); strings.TrimSpace(mode) == "ro" {
			e.report(unfit, a.host, "read-only mode", "it has no quorum, and only reads: start the other servers; handshake: %v", err)
			return nil
		}
		advice := "start it, or correct --servers"
		switch code := probe.Code(err); {
		case code == wire.CodeWantsAuth || code == -115 || errors.Is(err, zk.ErrAuthFailed):
			a.demands, a.asked = true, true
			e.report(unfit, a.host, "authentication", "%v; correct the credentials, or those that the server knows", err)
			return nil
		case e.cfg.TLS != nil:
			advice = "start it, or correct --servers, its port for TLS and the certificates"
		}
		e.report(unfit, a.host, "reached", "%v; %s", err, advice)
		return nil
	}
	trips, err := measure(conn.Ping)
	if probe.Code(err) == wire.CodeWantsAuth {
		a.reached, a.granted, a.number = true, conn.Granted, byte(uint64(conn.Session)>>56)
		a.demands, a.asked = true, true
		e.report(unfit, a.host, "authentication", "%v: give it --auth-file or --sasl-user, of a scheme that enforce.auth.schemes names", err)
		conn.Abandon()
		return nil
	}
	if err != nil {
		e.report(unfit, a.host, "reached", "a handshake succeeds, a ping does not: %v", err)
		conn.Abandon()
		return nil
	}
	a.reached, a.granted, a.number = true, conn.Granted, byte(uint64(conn.Session)>>56)
	g, advice := beside(trips.median, a.granted)
	e.report(g, a.host, "round trip", "%v, the median of %d; the handshake took %v%s", trips.median, trips.n, shortened(took), advice)
	switch {
	case a.granted != e.cfg.Timeout:
		e.report(doubt, a.host, "session timeout", "it grants %v, and %v is asked for: ask for what it grants, or change minSessionTimeout or maxSessionTimeout", a.granted, e.cfg.Timeout)
	default:
		e.report(fine, a.host, "session timeout", "it grants %v, as asked for", a.granted)
	}
	e.report(fine, a.host, "read-only mode", "no: the handshake of a client that writes is accepted")
	return conn
}

// The method `words` makes the checks that need the four-letter words or the admin server.
func (e *examination) words(ctx context.Context, a *examined) {
	e.granted = cmp.Or(a.granted, e.cfg.Timeout)
	if text, err := e.ask(ctx, a.host, "srvr"); err == nil {
		for line := range strings.Lines(text) {
			if v, ok := strings.CutPrefix(line, "Zookeeper version: "); ok {
				a.version, _, _ = strings.Cut(strings.TrimSpace(v), ",")
			}
			if v, ok := strings.CutPrefix(line, "Mode: "); ok {
				a.mode = strings.TrimSpace(v)
			}
		}
		e.borrow(a.host, "part in the ensemble", "as it should be", func() { e.judgeState(ctx, a.host, text) })
	}
	switch {
	case ctx.Err() != nil:
		return
	case a.version != "":
		e.report(fine, a.host, "version", "%s", a.version)
	case a.reached:
		e.report(doubt, a.host, "version", "not known, and neither is its part in the ensemble: it does not answer srvr; add it to 4lw.commands.whitelist")
	}
	settings, err := e.conf(ctx, a.host)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		e.borrow(a.host, "settings", "syncLimit, tickTime, minSessionTimeout and maxClientCnxns are fit", func() {
			e.settings(a.host, settings)
			e.differences(a.host, settings)
		})
	case a.reached:
		e.report(doubt, a.host, "settings", "syncLimit, tickTime, minSessionTimeout and maxClientCnxns are not known: %s; add conf to 4lw.commands.whitelist", strings.TrimSuffix(err.Error(), "."))
	}
	if e.admin == 0 || !a.reached {
		return
	}
	there := false
	e.borrow(a.host, "admin server", "", func() { there = e.adminServer(ctx, a.host) })
	switch {
	case ctx.Err() != nil:
	case !there:
		e.report(doubt, a.host, "admin server", "there is none at port %d (--admin-port): the server's own clock and its jute.maxbuffer for other servers were not checked", e.admin)
	default:
		e.report(fine, a.host, "admin server", "it tells its settings and its clock")
	}
}

// The method `borrow` makes a check that zsync doctor also makes without --ensemble, and reports
// the findings of that check as results.
func (e *examination) borrow(host, check, well string, look func()) {
	e.findings = nil
	look()
	for _, f := range e.findings {
		g, text := doubt, strings.TrimPrefix(f, "note: ")
		if problem, is := strings.CutPrefix(f, "problem: "); is {
			g, text = unfit, problem
		}
		e.report(g, host, check, "%s", strings.TrimPrefix(text, host+": "))
	}
	if len(e.findings) == 0 && well != "" {
		e.report(fine, host, check, "%s", well)
	}
}

// The method `authentication` finds out whether the server demands credentials, and whether it
// accepts the client's credentials. It returns true if the server accepts the client.
func (e *examination) authentication(ctx context.Context, a *examined, conn *probe.Conn) bool {
	const check = "authentication"
	err := conn.Exists("/")
	accepted := err == nil || probe.Code(err) == wire.CodeNoNode
	if e.hasCredentials() { // try also without credentials
		bare := e.cfg
		bare.Auths, bare.SASL = nil, nil
		if other, err := e.open(ctx, a, bare); err == nil {
			err := other.Exists("/")
			a.demands, a.asked = err != nil && probe.Code(err) != wire.CodeNoNode, ctx.Err() == nil
			other.Close()
		}
	} else {
		a.demands, a.asked = probe.Code(err) == wire.CodeWantsAuth, true
	}
	switch {
	case ctx.Err() != nil:
	case !accepted && a.demands && !e.hasCredentials():
		e.report(unfit, a.host, check, "%v: give it --auth-file or --sasl-user, of a scheme that enforce.auth.schemes names", err)
	case !accepted:
		e.report(unfit, a.host, check, "%v: give it --auth-file or --sasl-user that it knows", err)
	case !e.hasCredentials():
		e.report(fine, a.host, check, "it demands none, and none is given: every client can change every znode")
	default:
		who := ""
		if ids, err := conn.WhoAmI(); err == nil {
			who = ": " + strings.Join(slices.DeleteFunc(ids, func(id string) bool { return strings.HasPrefix(id, "ip:") }), ", ")
		}
		words := "accepted; it demands none"
		if a.demands {
			words = "accepted; it demands some"
		}
		e.report(fine, a.host, check, "the credentials are %s%s", words, who)
	}
	if !accepted || ctx.Err() != nil {
		conn.Abandon()
		return false
	}
	return true
}

// The method `begin` creates the znode of the examination, and checks the leader's clock with it. A
// signal does not interrupt `begin`. After an interruption, the examination would not know whether
// the znode exists.
func (e *examination) begin(ctx context.Context, a *examined) bool {
	const check = "permissions"
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*answering)
	defer cancel()
	conn, err := e.open(ctx, a, e.cfg)
	if err != nil {
		e.report(unfit, a.host, check, "no second connection: %v; is maxClientCnxns too small?", err)
		return false
	}
	defer conn.Close()
	at := e.base
	for at != "/" && probe.Code(conn.Exists(at)) == wire.CodeNoNode {
		at = path.Dir(at)
	}
	name := path.Join(at, "zsync-doctor-"+rand.Text())
	sent := time.Now()
	err = conn.Create(name, nil, e.acl, zk.FlagPersistent)
	if err != nil {
		if probe.Code(err) == 0 {
			e.own, e.unsure = name, true
		}
		e.report(unfit, a.host, check, "a znode cannot be created in %s: %v; zsync needs create, read, write and delete there", at, err)
		return false
	}
	got := time.Now()
	e.own = name
	e.report(fine, a.host, check, "znodes can be created in %s", at)
	_, stat, err := conn.Get(name)
	if err != nil {
		e.report(unfit, a.host, check, "%s cannot be read: %v", name, err)
		return false
	}
	if off := clockOff(sent, got, time.UnixMilli(stat.Ctime)); off > 2*time.Second || off < -2*time.Second {
		e.report(doubt, allServers, "clocks", "the leader's is %v off this machine's: times in zsync ls and status are wrong by that; set the clocks", off.Round(time.Second))
	} else {
		e.report(fine, allServers, "clocks", "the leader's agrees with this machine's")
	}
	return true
}

// clockOff returns the least time by which another clock is ahead of ours. The result is negative
// if that clock is behind. The server's clock showed the time `made` at a moment when our clock
// showed a time between `sent` and `got`.
func clockOff(sent, got, made time.Time) time.Duration {
	switch {
	case made.After(got):
		return made.Sub(got)
	case made.Before(sent):
		return made.Sub(sent)
	}
	return 0
}

// The method `timeouts` is the check that all servers grant the same session timeout.
func (e *examination) timeouts() {
	e.alike("session timeout", "set minSessionTimeout, maxSessionTimeout and tickTime alike", func(a *examined) string {
		if !a.reached {
			return ""
		}
		return a.granted.String()
	}, unfit)
}

// The method `versions` is the check that all servers have the same version.
func (e *examination) versions() {
	e.alike("version", "let all have one, after an upgrade", func(a *examined) string { return a.version }, doubt)
}

// The method `credentials` is the check that either all servers demand credentials or none.
func (e *examination) credentials() {
	e.alike("authentication", "set enforce.auth.enabled alike", func(a *examined) string {
		switch {
		case !a.asked:
			return ""
		case a.demands:
			return "credentials are demanded"
		}
		return "no credentials are demanded"
	}, unfit)
}

// The method `alike` checks that a value is the same at all servers. It skips servers whose value
// is "", which means that the value is unknown.
func (e *examination) alike(check, advice string, value func(*examined) string, g grade) {
	var first *examined
	for _, a := range e.servers {
		v := value(a)
		switch {
		case v == "":
		case first == nil:
			first = a
		case v != value(first):
			e.report(g, allServers, check, "%s at %s, %s at %s: %s", value(first), first.host, v, a.host, advice)
			return
		}
	}
	if first != nil && len(e.servers) > 1 {
		e.report(fine, allServers, check, "%s at each", value(first))
	}
}

// The method `names` is the check that no server has two names in the connect string.
func (e *examination) names() {
	const check = "names"
	found := false
	for i, a := range e.servers {
		for _, b := range e.servers[:i] {
			same := slices.ContainsFunc(a.addrs, func(addr string) bool { return slices.Contains(b.addrs, addr) })
			switch {
			case same:
				e.report(unfit, allServers, check, "%s and %s are one server, by their addresses: list each server once", b.host, a.host)
			case a.reached && b.reached && a.number == b.number && a.number != 0:
				e.report(unfit, allServers, check, "%s and %s make sessions of the same server number, %d: they are one server, or not of one ensemble; list each server once, by a name of its own", b.host, a.host, a.number)
			default:
				continue
			}
			found = true
		}
	}
	if !found && len(e.servers) > 1 {
		e.report(fine, allServers, check, "each is another server")
	}
}

// The method `quotas` is the check of the quotas of the path and of the paths above it.
func (e *examination) quotas(ctx context.Context) {
	const check = "quotas"
	conn, a := e.any(ctx)
	if conn == nil {
		return
	}
	defer conn.Close()
	found := false
	for at := e.base; ; at = path.Dir(at) {
		node := path.Join("/zookeeper/quota", at)
		limits, _, err := conn.Get(node + "/zookeeper_limits")
		switch {
		case ctx.Err() != nil:
			return
		case probe.Code(err) == wire.CodeNoNode:
		case err != nil:
			found = true
			e.report(doubt, allServers, check, "that of %s cannot be read at %s: %v", at, a.host, err)
		default:
			found = true
			used, _, err := conn.Get(node + "/zookeeper_stats")
			if err != nil {
				used = nil
			}
			g, text := judgeQuota(string(limits), string(used))
			e.report(g, allServers, check, "%s: %s", at, text)
		}
		if at == "/" {
			break
		}
	}
	if !found {
		e.report(fine, allServers, check, "none on %s", e.base)
	}
}

// judgeQuota compares a quota with its use. Both are in the servers' form, such as
// count=5,bytes=-1.
func judgeQuota(limits, used string) (grade, string) {
	limit, use := numbers(limits), numbers(used)
	worst, text := fine, "a quota ("+limits+"), of which less than 90 % is used"
	for _, name := range []string{"count", "bytes"} {
		for _, kind := range []struct {
			limit, words string
			g            grade
		}{
			{name, "the servers only log what exceeds it", doubt},
			{strings.TrimSuffix(name, "s") + "HardLimit", "the servers refuse creates beyond it, and so every lock", unfit},
		} {
			n, ok := limit[kind.limit]
			if !ok || n < 0 || use[name] < n*9/10 || kind.g < worst {
				continue
			}
			worst, text = kind.g, fmt.Sprintf("%s is %d, and %d is used: %s; raise it with setquota", kind.limit, n, use[name], kind.words)
		}
	}
	return worst, text
}

// The function `numbers` returns the numbers in a text such as NAME=NUMBER,…;NAME=NUMBER,….
func numbers(text string) map[string]int64 {
	all := map[string]int64{}
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ';' }) {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if n, err := strconv.ParseInt(strings.TrimSuffix(value, "="), 10, 64); err == nil {
			all[name] = n
		}
	}
	return all
}

// The method `any` returns a connection to one of the servers that the examination has reached.
func (e *examination) any(ctx context.Context) (*probe.Conn, *examined) {
	for _, a := range e.servers {
		if !a.reached {
			continue
		}
		if conn, err := e.open(ctx, a, e.cfg); err == nil {
			return conn, a
		}
	}
	return nil, nil
}

// cleanUp deletes the znodes of the examination. It uses a new connection, because the connection
// of a check may have ended during a request.
func (e *examination) cleanUp(ctx context.Context) error {
	if e.own == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 4*answering)
	defer cancel()
	err := errors.New("no server answers")
	for try := range 5 {
		if try > 0 {
			time.Sleep(time.Second / 2)
		}
		conn, _ := e.any(ctx)
		if conn == nil {
			continue
		}
		err = removeAll(conn, e.own)
		conn.Close()
		if err == nil && (!e.unsure || try > 1) { // the servers may still execute a request that had no reply
			return nil
		}
	}
	return err
}

// removeAll deletes a znode and all znodes below it. A create that arrives late may add a child
// during the deletion, so removeAll tries several times.
func removeAll(conn *probe.Conn, node string) error {
	for range 10 {
		names, err := conn.Children(node)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := removeAll(conn, path.Join(node, name)); err != nil {
				return err
			}
		}
		if err := conn.Delete(node); probe.Code(err) != wire.CodeNotEmpty {
			return err
		}
	}
	return fmt.Errorf("%s gets new children all the time", node)
}

// wordless is the flag that replaces a --servers of zsync doctor that has no value.
const wordless = "ensemble"

// withoutValue returns the arguments of zsync doctor, in which wordless replaces a --servers that
// has no value. The value is missing if --servers is the last argument, or if the next argument
// begins with - or /. No connect string begins with these characters.
func withoutValue(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd.Name() != "doctor" {
		return args
	}
	replaced := slices.Clone(args)
	for i, a := range args {
		if a == "--servers" && (i+1 == len(args) || strings.HasPrefix(args[i+1], "-") || strings.HasPrefix(args[i+1], "/")) {
			replaced[i] = "--" + wordless
		}
	}
	return replaced
}
