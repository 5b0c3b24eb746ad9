package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"

	"github.com/zsync/zsync/ui"
)

// This file has zsync ui: it serves the page of package ui. Without flags, it serves only this
// machine. Package ui has the page itself.

func uiCommand(c *client) *cobra.Command {
	h := newHolding(c)
	listen, writable, every := "", false, seconds(time.Second)
	var timetables []string
	cmd := &cobra.Command{
		Use:   "ui [PATH] [flags]",
		Short: "serve a page with holders and waiters, live",
		Long: `zsync ui serves a web page that shows everything at PATH and below it (default: /):
holders and waiters, deadlocks, leaders, queues, groups, schedules, and each handoff
that zsync ui sees. The page loads nothing from elsewhere, and works without JavaScript.

By default, zsync ui listens on this machine only, and changes nothing. With --writable,
every visitor of the page can break locks. zsync ui asks for no password: if --listen
names an address that other machines can reach, put a proxy with authentication in
front. Programs can serve the same page: see package ui.`,
		Example: "  zsync ui\n  zsync ui /jobs --listen 127.0.0.1:9000 --timetable '/jobs/nightly=0 3 * * *'",
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := ui.Options{ReadOnly: !writable, Root: "/", Interval: time.Duration(every)}
			if len(args) > 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			if len(args) == 1 {
				opts.Root = args[0]
			}
			opts.Timetables = map[string]interface{ Next(time.Time) time.Time }{}
			for _, text := range timetables {
				path, spec, ok := strings.Cut(text, "=")
				if !ok {
					return fail(exitUsage, "--timetable %s: want PATH=FIELDS, five of crontab(5)", text)
				}
				if err := checkPaths([]string{path}, false); err != nil {
					return err
				}
				table, err := parseCron(spec)
				if err != nil {
					return fail(exitUsage, "--timetable %s: want PATH=FIELDS, five of crontab(5): %w", text, err)
				}
				opts.Timetables[path] = table
			}
			if err := checkAddress(listen); err != nil {
				return err
			}
			h.root, h.shows = true, true
			t, err := h.begin(cmd.Context(), nil, opts.Root)
			if err != nil {
				return err
			}
			defer t.session.Close()
			if _, _, err := t.session.Children(t.waiting, opts.Root); err != nil && opts.Root != "/" {
				if errors.Is(err, zk.ErrNoNode) {
					return fail(exitConfig, "%s: nothing is there; the page wants a path that exists", opts.Root)
				}
				return verdict(err, exitServers)
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return fail(exitServers, "--listen: %w", err)
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "serving on http://%s/\n", l.Addr()); err != nil {
				l.Close()
				return outputError(err)
			}
			return t.serve(l, ui.Handler(t.session, opts))
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8042", "`ADDRESS` to listen on; port 0 takes a free one")
	cmd.Flags().BoolVar(&writable, "writable", false, "let visitors of the page break locks")
	cmd.Flags().Var(&every, "interval", "`TIME` between two refreshes")
	cmd.Flags().StringArrayVar(&timetables, "timetable", nil, "timetable of a schedule, `PATH=FIELDS`, as in zsync schedule --cron; may be repeated")
	return cmd
}

// The method `serve` serves the page until a signal comes.
func (t *task) serve(l net.Listener, page http.Handler) error {
	if local(l.Addr().String()) {
		page = onlyLocal(page)
	}
	srv := &http.Server{Handler: prompt(page), ReadHeaderTimeout: sendLimit, IdleTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return t.waiting }}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return &statusError{exitOutput, err}
	case <-t.waiting.Done():
		srv.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			return &statusError{exitOutput, err}
		}
		return verdict(context.Cause(t.waiting), exitBusy)
	}
}

// The constant `sendLimit` is the time in which a visitor must send the header of a request. For the
// body, the same time begins again.
const sendLimit = 10 * time.Second

// The function `prompt` limits the time in which a client sends the body of a request. The server's
// ReadTimeout would end the stream of events, too.
func prompt(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(sendLimit)) // it fails only for a closed connection
		}
		page.ServeHTTP(w, r)
	})
}

// The function `local` reports whether `host` is this machine. The argument may have a port.
func local(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.IsLoopback() || strings.EqualFold(host, "localhost")
}

// onlyLocal refuses requests whose Host is another name. Without this, another site could make its
// own name lead to this server. Then the scripts of that site could read the page.
func onlyLocal(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r.Host) {
			http.Error(w, "this page is served to this machine alone: ask for it as localhost", http.StatusMisdirectedRequest)
			return
		}
		page.ServeHTTP(w, r)
	})
}
