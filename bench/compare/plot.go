package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// This file draws the results as plots. The tables are the business of table.go.

// dots are the points of a plot: medians with their spread.
type dots struct {
	plotter.XYs
	plotter.YErrors
}

// writePlots writes a plot of the rates for each link. For each workload with
// several sizes, it also writes a plot of the time by size.
func (r *result) writePlots(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, delay := range r.plan.delays {
		p := plot.New()
		p.Title.Text = "Operations per second, " + link(delay)
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		var names []string
		jobs := r.compared(delay)
		for _, j := range jobs {
			names = append(names, j.title())
		}
		for i, peer := range r.peers() {
			var d dots
			for x, j := range jobs {
				d.add(float64(x)+0.12*(float64(i)-float64(len(r.peers())-1)/2), values(r.rates(delay, j, peer)))
			}
			if err := d.draw(p, i, peer, false); err != nil {
				return err
			}
		}
		p.NominalX(names...)
		p.X.Min, p.X.Max = -0.5, float64(len(jobs))-0.5
		p.Legend.Top = true
		p.Add(plotter.NewGrid())
		if err := p.Save(9*vg.Inch, 4.5*vg.Inch, filepath.Join(dir, fmt.Sprintf("rates-%v.svg", delay))); err != nil {
			return err
		}
		if err := r.plotSizes(dir, r.jobs(delay)); err != nil {
			return err
		}
	}
	return nil
}

// compared returns the workloads that several peers have, or all of them if there is only one peer.
func (r *result) compared(delay time.Duration) (jobs []job) {
	for _, j := range r.jobs(delay) {
		n := 0
		for _, peer := range r.peers() {
			n += min(len(r.rates(delay, j, peer)), 1)
		}
		if n > 1 || len(r.peers()) == 1 {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// title returns the name of j below a plot.
func (j job) title() string {
	switch j.workload {
	case "lock_uncontended":
		return "free lock"
	case "lock_shared_session":
		return fmt.Sprintf("lock of\n%d goroutines", j.n)
	case "lock_sessions":
		return fmt.Sprintf("lock of\n%d sessions", j.n)
	case "barrier":
		return fmt.Sprintf("double barrier\nof %d", j.n)
	}
	return j.String()
}

// plotSizes plots the workloads with several sizes, on the first link.
func (r *result) plotSizes(dir string, jobs []job) error {
	delay := r.plan.delays[0]
	of := func(name string) (ns []int) {
		for _, j := range jobs {
			if j.workload == name {
				ns = append(ns, j.n)
			}
		}
		slices.Sort(ns)
		return ns
	}
	for i, j := range jobs {
		ns := of(j.workload)
		if len(ns) < 2 || slices.IndexFunc(jobs, func(x job) bool { return x.workload == j.workload }) != i {
			continue
		}
		p := plot.New()
		p.Title.Text = "Time of one operation of all, " + j.workload
		p.X.Label.Text, p.Y.Label.Text = "contenders", "µs"
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Min = 0
		for k, peer := range r.peers() {
			var d dots
			for _, n := range ns {
				var times []float64
				for _, rate := range r.rates(delay, job{j.workload, n}, peer) {
					times = append(times, 1e6/rate)
				}
				d.add(float64(n), times)
			}
			if err := d.draw(p, k, peer, true); err != nil {
				return err
			}
		}
		if err := p.Save(7*vg.Inch, 4*vg.Inch, filepath.Join(dir, "sizes-"+j.workload+".svg")); err != nil {
			return err
		}
	}
	return nil
}

func (d *dots) add(x float64, ys []float64) {
	if len(ys) == 0 || slices.Min(ys) <= 0 {
		return
	}
	s := spreadOf(ys)
	d.XYs = append(d.XYs, plotter.XY{X: x, Y: s.median})
	d.YErrors = append(d.YErrors, struct{ Low, High float64 }{s.median - s.least, s.most - s.median})
}

// draw adds d to p, in the i'th colour.
func (d *dots) draw(p *plot.Plot, i int, name string, joined bool) error {
	if len(d.XYs) == 0 {
		return nil
	}
	points, err := plotter.NewScatter(d)
	if err != nil {
		return err
	}
	points.Color, points.Shape, points.Radius = plotutil.Color(i), plotutil.Shape(i), vg.Points(4)
	bars, err := plotter.NewYErrorBars(d)
	if err != nil {
		return err
	}
	bars.Color = plotutil.Color(i)
	p.Add(points, bars)
	p.Legend.Add(name, points)
	if joined {
		l, err := plotter.NewLine(d)
		if err != nil {
			return err
		}
		l.Color = plotutil.Color(i)
		p.Add(l)
	}
	return nil
}
