package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// This file runs the peers and collects their lines. The summary of the results is the business of
// table.go and plot.go.

// A sample is one line of a peer's output.
type sample struct {
	delay time.Duration
	job   job
	peer  string
	rep   int
	rate  float64
	load  float64 // the load of the machine after the measurement, or -1
}

// A result holds the measurements of a plan.
type result struct {
	plan    plan
	samples []sample
	server  string // the version that it reports
	began   time.Time
	about   string
	failed  []string
}

// run carries out the plan. In each round, it measures every workload once with each peer, one peer
// right after another. Each round begins with another peer.
func (p plan) run(ctx context.Context) (*result, error) {
	r := &result{plan: p, server: srvr(p.servers), began: time.Now()}
	for _, delay := range p.delays {
		addr := p.servers
		if delay > 0 {
			via, stop, err := startProxy(p.servers, delay/2)
			if err != nil {
				return nil, err
			}
			defer stop()
			addr = via
		}
		for rep := range p.reps {
			for _, j := range p.jobs {
				for i := range p.peers {
					if err := r.measure(ctx, addr, sample{delay: delay, job: j, rep: rep}, p.peers[(i+rep)%len(p.peers)]); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	if len(r.samples) == 0 {
		return nil, fmt.Errorf("nothing was measured: %q", r.failed)
	}
	return r, nil
}

// measure runs the command of a peer. It skips a peer without the workload. It also skips a peer
// that fails or takes too long, and notes it in r.failed.
func (r *result) measure(ctx context.Context, addr string, s sample, p peer) error {
	limited, cancel := context.WithTimeout(ctx, r.plan.limit)
	defer cancel()
	args := strings.Fields(strings.NewReplacer(
		"{servers}", addr, "{workload}", s.job.workload, "{n}", strconv.Itoa(s.job.n),
		"{dur}", seconds(r.plan.dur), "{warm}", seconds(r.plan.warm),
	).Replace(p.command))
	if len(args) == 0 {
		return fmt.Errorf("peer %s has no command", p.name)
	}
	cmd := exec.CommandContext(limited, args[0], args[1:]...)
	cmd.WaitDelay = time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 64:
		return nil
	case errors.As(err, &exit), limited.Err() != nil:
		r.failed = append(r.failed, fmt.Sprintf("%s, %s: %v: %s", p.name, s.job, err, lastLine(said.String())))
		return nil
	case err != nil:
		return err // the command could not be started
	}
	s.load = loadNow()
	return r.take(out.String(), s, p)
}

// take adds the lines of a peer's output to the samples. A line may name a part of the peer, such
// as kazoo-Queue, or a part of the workload, such as queue_put of queue.
func (r *result) take(out string, s sample, p peer) error {
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(rows) == 0 {
		return fmt.Errorf("peer %s printed no CSV: %q, %v", p.name, out, err)
	}
	for _, row := range rows {
		if len(row) != 4 {
			return fmt.Errorf("peer %s printed %q; want name,workload,n,rate", p.name, row)
		}
		n, err := strconv.Atoi(row[2])
		rate, err2 := strconv.ParseFloat(row[3], 64)
		if err = errors.Join(err, err2); err != nil {
			return fmt.Errorf("peer %s printed %q: %w", p.name, row, err)
		}
		s.peer, s.job, s.rate = row[0], job{row[1], n}, rate
		if s.peer != p.name && !strings.HasPrefix(s.peer, p.name+"-") {
			s.peer = p.name
		}
		r.samples = append(r.samples, s)
	}
	return nil
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndex(s, "\n")+1:]
}

// srvr returns the version in a server's answer to "srvr", or "".
func srvr(addr string) string {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	io.WriteString(c, "srvr")
	b, _ := io.ReadAll(c)
	version, ok := strings.CutPrefix(string(b), "Zookeeper version: ")
	if !ok {
		return ""
	}
	return "ZooKeeper " + version[:max(0, strings.IndexAny(version+"\n", "-,\n"))]
}

// loadNow returns the load of the machine over the last minute, or -1.
func loadNow() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil || runtime.GOOS != "linux" {
		return -1
	}
	load, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	if err != nil {
		return -1
	}
	return load
}

func (r *result) writeCSV(file string) error {
	if file == "" {
		return nil
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	w.Write([]string{"round_trip", "peer", "workload", "n", "rep", "ops_per_s", "load"})
	for _, s := range r.samples {
		w.Write([]string{s.delay.String(), s.peer, s.job.workload, strconv.Itoa(s.job.n), strconv.Itoa(s.rep), fmt.Sprintf("%.1f", s.rate), fmt.Sprintf("%.2f", s.load)})
	}
	w.Flush()
	return errors.Join(w.Error(), f.Close())
}
