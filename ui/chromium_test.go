//go:build linux

package ui_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/ui"
	"github.com/zsync/zsync/zktest"
)

// A browser is a headless Chromium with one page, spoken to through a pipe in the
// protocol of its developer tools.
type browser struct {
	t       *testing.T
	to      *os.File
	answers chan map[string]json.RawMessage
	session string
	last    int
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	program := need.Command(t, "chromium")
	fromUs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, toUs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	profile, err := os.MkdirTemp("", "zsync-ui-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its children may write for a moment after it
		for range 200 {
			if os.RemoveAll(profile) == nil {
				return
			}
			time.Sleep(50 * time.Millisecond) // real time: children of the browser may still write
		}
	})
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--remote-debugging-pipe", "--user-data-dir="+profile, "--window-size=1000,800", "about:blank")
	cmd.ExtraFiles = []*os.File{fromUs, toUs}
	cmd.Env = append(os.Environ(), "HOME="+profile)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fromUs.Close()
	toUs.Close()
	b := &browser{t: t, to: to, answers: make(chan map[string]json.RawMessage, 1000)}
	read := make(chan struct{})
	var ended atomic.Bool
	go func() {
		defer close(read)
		in := bufio.NewReader(from)
		for {
			text, err := in.ReadBytes(0)
			if err != nil {
				return
			}
			var answer map[string]json.RawMessage
			if json.Unmarshal(text[:len(text)-1], &answer) == nil && answer["id"] != nil && !ended.Load() {
				b.answers <- answer
			}
		}
	}()
	t.Cleanup(func() {
		ended.Store(true)
		to.Close()
		timer := time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()
		from.Close()
		<-read
	})
	target := b.call("Target.createTarget", map[string]any{"url": "about:blank"})
	attached := b.call("Target.attachToTarget", map[string]any{"targetId": text(target["targetId"]), "flatten": true})
	b.session = text(attached["sessionId"])
	return b
}

func text(raw json.RawMessage) (s string) {
	json.Unmarshal(raw, &s)
	return s
}

// call has the browser do something.
func (b *browser) call(method string, params map[string]any) (result map[string]json.RawMessage) {
	b.t.Helper()
	b.last++
	message := map[string]any{"id": b.last, "method": method, "params": params}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	data, _ := json.Marshal(message)
	if _, err := b.to.Write(append(data, 0)); err != nil {
		b.t.Fatal(err)
	}
	for timeout := time.After(3 * time.Minute); ; {
		select {
		case answer := <-b.answers:
			var id int
			if json.Unmarshal(answer["id"], &id); id != b.last {
				continue
			}
			if answer["error"] != nil {
				b.t.Fatalf("%s: %s", method, answer["error"])
			}
			json.Unmarshal(answer["result"], &result)
			return result
		case <-timeout:
			b.t.Fatalf("%s: no answer", method)
		}
	}
}

// eval evaluates an expression whose value is a string.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	got := b.call("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")"})
	var value struct{ Value string }
	json.Unmarshal(got["result"], &value)
	return value.Value
}

func (b *browser) await(expression, want string) {
	b.t.Helper()
	got := ""
	// real time: the browser is a process of its own
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = b.eval(expression); strings.Contains(got, want) {
			return
		}
	}
	b.t.Fatalf("%s never has %q:\n%s", expression, want, got)
}

// screenshot takes a picture of the page. With ZSYNC_SCREENSHOTS=1 it goes to the
// documentation.
func (b *browser) screenshot(name, scheme string) {
	b.t.Helper()
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
	got := b.call("Page.captureScreenshot", map[string]any{"format": "png"})
	png, err := base64.StdEncoding.DecodeString(text(got["data"]))
	if err != nil || len(png) < 5000 {
		b.t.Fatalf("a picture of %d bytes, %v", len(png), err)
	}
	dir := b.t.TempDir()
	if os.Getenv("ZSYNC_SCREENSHOTS") != "" {
		dir = filepath.Join("..", "docs")
	}
	if err := os.WriteFile(filepath.Join(dir, name), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func TestChromiumShowsAHandOverWithoutLoadingThePageAnew(t *testing.T) {
	if testing.Short() {
		t.Skip("-short is set, and a browser takes seconds, so this is not shown: Chromium shows a hand-over without loading the page anew")
	}
	b := openBrowser(t)
	srv := zktest.Start(t, harness.Patient)
	m := everything(t, srv)
	waiter := zsync.NewMutex(session(t, srv, "worker-2"), m.Path())
	base, _ := serve(t, srv, ui.Options{Interval: 100 * time.Millisecond})
	b.call("Page.enable", nil)
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 800, "height": 760, "deviceScaleFactor": 1, "mobile": false})
	b.call("Page.navigate", map[string]any{"url": base})
	const lines = `document.getElementById("lines").innerText`
	b.await(lines, "/jobs/nightly")
	b.eval(`window.before = "still here"`) // is lost when the page is loaded anew

	go waiter.Lock(t.Context())
	waiting(t, waiter, 2)
	b.await(lines, "worker-2")
	const holder = `[...document.querySelectorAll("article")].find(a => a.innerText.includes("/jobs/nightly")).querySelector("tr.holds").innerText`
	b.await(holder, "worker-1")
	if got := b.eval(`document.querySelector("button.copy").hidden`); got != "false" {
		t.Errorf("commands cannot be copied: hidden is %s", got)
	}
	if err := m.Unlock(); err != nil {
		t.Fatal(err)
	}
	b.await(holder, "worker-2")
	b.await(`document.getElementById("timeline").innerText`, "released")
	b.screenshot("ui-light.png", "light")
	ring(t, srv)
	b.await(`document.getElementById("deadlocks").innerText`, "billing waits at /locks/shipping for\nshipping waits at")
	const color = `getComputedStyle(document.querySelector(".ring")).borderLeftColor`
	light := b.eval(color)
	b.screenshot("ui-dark.png", "dark")
	if dark := b.eval(color); light != "rgb(179, 18, 29)" || dark != "rgb(255, 123, 114)" {
		t.Errorf("a deadlock is drawn in %s and, with a dark scheme, in %s", light, dark)
	}
	if got := b.eval(`window.before`); got != "still here" {
		t.Errorf("the page was loaded anew: %s", got)
	}
	if got := b.eval(`[...document.querySelectorAll("th")].every(h => h.scope) && document.documentElement.lang && document.title`); got != "zsync /" {
		t.Errorf("a screen reader finds %s", got)
	}
}

// The page fits any width, whatever is on it: ten names of 35 characters in a deadlock, and many locks and queues.
func TestThePageFitsItsWindow(t *testing.T) {
	if testing.Short() {
		t.Skip("-short is set, and a browser takes seconds, so this is not shown: the page fits its window")
	}
	b := openBrowser(t)
	srv := zktest.Start(t, harness.Patient)
	ctx := t.Context()
	everything(t, srv)
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("a-host-with-a-long-name-%d.example.co", i))
	}
	ringOf(t, srv, names...)
	s := session(t, srv, names[0])
	for i := range 50 {
		if err := zsync.NewMutex(s, fmt.Sprintf("/locks/of-many/number-%d", i)).Lock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		if err := zsync.NewQueue[string](s, fmt.Sprintf("/queues/with-a-name-of-many-characters-%d", i)).Send(ctx, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := zsync.NewSchedule(s, "/schedules/nightly").Do(ctx, time.Now(), func(context.Context) error { return errors.New("disk full") }); err == nil {
		t.Error("a failure is none")
	}
	candidate := zsync.NewElection(session(t, srv, "candidate"), "/services/scheduler")
	go candidate.Campaign(ctx)
	base, _ := serve(t, srv, ui.Options{Interval: 100 * time.Millisecond})
	b.call("Page.enable", nil)
	b.call("Page.navigate", map[string]any{"url": base})
	const lines = `document.getElementById("lines").innerText`
	b.await(lines, "standby 1")
	b.await(`document.getElementById("schedules").innerText`, "disk full")
	b.await(`document.getElementById("deadlocks").innerText`, "waits at /locks/"+names[1]+" for\n"+names[1])
	for _, width := range []int{360, 500, 800, 1400, 2400} {
		b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false})
		b.await(`"width " + window.innerWidth + "."`, fmt.Sprintf("width %d.", width)) // on a busy machine, the browser takes a moment
		const wider = `[document.documentElement, ...document.querySelectorAll("section, article, table")].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => (e.id || e.tagName) + " " + e.scrollWidth + " of " + e.clientWidth).slice(0, 5).join(", ")`
		if got := b.eval(wider); got != "" {
			t.Errorf("%d pixels wide, there is more beside the window: %s", width, got)
		}
		const overlap = `(() => { const r = [...document.querySelectorAll(".ring li")].map(e => e.getBoundingClientRect()); return r.length + " " + r.filter((a, i) => r.some((b, j) => i < j && a.bottom > b.top + 1 && b.bottom > a.top + 1)).length })()`
		if got := b.eval(overlap); got != "11 0" {
			t.Errorf("%d pixels wide, labels and overlaps of the deadlock are %s", width, got)
		}
		if width != 800 {
			b.screenshot(fmt.Sprintf("ui-%d.png", width), "light")
		}
	}
	// Waiters for a lock are more urgent than candidates on standby, and these than lines without waiters.
	const order = `[...document.querySelectorAll("#lines article")].map(a => a.innerText.includes("standby") ? "standby" : a.querySelectorAll("tr:not(.holds) td").length ? "waits" : "free").filter((w, i, all) => w != all[i - 1]).join(" ")`
	if got := b.eval(order); got != "waits standby free" {
		t.Errorf("the order of the lines is %s", got)
	}
	if got := b.eval(`document.querySelectorAll("#deadlocks, #lines").length + " " + ` + lines + `.includes("leads")`); got != "2 true" {
		t.Errorf("a leader does not lead: %s", got)
	}
}
