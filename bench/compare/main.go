// Command compare measures several clients with the same workloads on one server. The clients run
// one after another, in several rounds. The command writes the results as CSV, as tables in a
// Markdown file, and as plots. The workloads are the business of the clients.
//
//	compare -servers HOST:PORT -peer 'NAME=COMMAND' -peer … -do lock_uncontended:1,lock_sessions:8 -reps 5 -csv out.csv
//
// A peer is a command that measures one workload and prints lines "name,workload,n,operations per
// second"; see bench/README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"
)

// A plan describes the measurements.
type plan struct {
	servers   string
	peers     []peer
	jobs      []job
	delays    []time.Duration // the round-trip delays of the link
	reps      int
	dur, warm time.Duration
	limit     time.Duration // the time limit of one command
}

// A peer is a command that measures a client.
type peer struct{ name, command string }

// A job is a workload with its size.
type job struct {
	workload string
	n        int
}

func (j job) String() string { return fmt.Sprintf("%s, %d", j.workload, j.n) }

func main() {
	var p plan
	var do, delays, csv, doc, plots, about string
	flag.StringVar(&p.servers, "servers", os.Getenv("ZSYNC_TEST_SERVERS"), "the server, as `HOST:PORT`")
	flag.Func("peer", "`NAME=COMMAND`; in the command {servers}, {workload}, {n}, {dur} and {warm} (in seconds) are replaced. May be repeated; the first is set beside the others", func(s string) error {
		name, command, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("want NAME=COMMAND")
		}
		p.peers = append(p.peers, peer{name, command})
		return nil
	})
	flag.StringVar(&do, "do", "lock_uncontended:1,lock_shared_session:8,lock_sessions:8,barrier:8", "`WORKLOAD:N,...`")
	flag.StringVar(&delays, "delays", "0", "round trips of the link, such as `0,1ms,10ms,50ms`")
	flag.IntVar(&p.reps, "reps", 5, "how often each is measured")
	flag.DurationVar(&p.dur, "dur", 3*time.Second, "measured time")
	flag.DurationVar(&p.warm, "warm", time.Second, "time before it")
	flag.DurationVar(&p.limit, "limit", 2*time.Minute, "how long one command may take")
	flag.StringVar(&csv, "csv", "", "write every measurement to this `file`")
	flag.StringVar(&doc, "doc", "", "write the tables into this Markdown `file`, between its marks")
	flag.StringVar(&plots, "plots", "", "write the plots into this `directory`")
	flag.StringVar(&about, "about", "", "what the reader must know of machine and versions")
	flag.Parse()
	var err error
	if p.jobs, err = parseJobs(do); err == nil {
		p.delays, err = parseDelays(delays)
	}
	if err == nil && (p.servers == "" || len(p.peers) == 0 || p.reps < 1) {
		err = fmt.Errorf("-servers, -peer and -reps of at least 1 are needed")
	}
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := p.run(ctx)
	if err != nil {
		log.Fatal(err)
	}
	r.about = about
	for _, f := range []func() error{
		func() error { return r.writeCSV(csv) },
		func() error { return r.writeDoc(doc) },
		func() error { return r.writePlots(plots) },
	} {
		if err := f(); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Print(r.markdown())
}

func parseJobs(s string) (jobs []job, err error) {
	for part := range strings.SplitSeq(s, ",") {
		name, size, ok := strings.Cut(part, ":")
		n, err := strconv.Atoi(size)
		if !ok || err != nil || n < 1 {
			return nil, fmt.Errorf("-do %q: want WORKLOAD:N", part)
		}
		jobs = append(jobs, job{name, n})
	}
	return jobs, nil
}

func parseDelays(s string) (all []time.Duration, err error) {
	for part := range strings.SplitSeq(s, ",") {
		if part == "0" {
			part = "0s"
		}
		d, err := time.ParseDuration(part)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("-delays %q: want durations", part)
		}
		all = append(all, d)
	}
	return all, nil
}
