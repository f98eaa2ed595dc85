package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// page is a supervisor's page in Chromium: web/test/cluster.mjs.
type page struct {
	in    io.Writer
	lines *bufio.Scanner
	// browser is the Node.js process that owns the browser.
	browser *os.Process
}

// browser opens the page of a supervisor, and closes it with the trial. Without a browser, it skips the test asks.
func (t trial) browser(asks *testing.T, id string) *page {
	asks.Helper()
	node, chromium := requirements.Program(asks, "Node.js", "node"), requirements.Program(asks, "Debian's package chromium", "chromium")
	web := filepath.Join("..", "..", "web")
	for _, made := range []string{filepath.Join(web, "node_modules", "playwright-core"),
		filepath.Join("..", "supervisor", "web", "dist", "app", "index.html")} {
		if _, err := os.Stat(made); err != nil {
			requirements.Missing(asks, "the page was not built: make web")
		}
	}
	cmd := exec.CommandContext(t.Context(), node, "test/cluster.mjs")
	cmd.Dir, cmd.Env, cmd.Stderr = web, append(os.Environ(), "LOFAMO_CHROMIUM="+chromium), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		asks.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		asks.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		asks.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // it ends then
		_ = cmd.Wait()
	})
	p := &page{in, bufio.NewScanner(out), cmd.Process}
	p.do(asks, "open "+t.login(asks, id))
	return p
}

// do has the page do something or wait for it, and returns the result. It kills a browser that hangs, as one may at its
// start.
func (p *page) do(t *testing.T, what string) string {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, what); err != nil {
		t.Fatal(err)
	}
	hangs := time.AfterFunc(time.Minute, func() { _ = p.browser.Kill() })
	defer hangs.Stop()
	if !p.lines.Scan() {
		t.Fatalf("the browser is gone: %v", p.lines.Err())
	}
	found, ok := strings.CutPrefix(p.lines.Text(), "ok ")
	if !ok {
		t.Fatalf("the browser: %s: %s", what, p.lines.Text())
	}
	return found
}

// login returns a link to a supervisor's page, for a viewer.
func (t trial) login(asks *testing.T, id string) string {
	asks.Helper()
	sup, err := t.Cluster.Supervisor(id)
	if err != nil {
		asks.Fatal(err)
	}
	signer, err := pki.LoadSigner(t.Cluster.PKI("viewer.pem"), t.Cluster.PKI("viewer.key"))
	if err != nil {
		asks.Fatal(err)
	}
	token, err := pki.NewWebLogin(signer, id, time.Now())
	if err != nil {
		asks.Fatal(err)
	}
	return "http://" + sup.Web + "/#login=" + token
}

// killed kills a node of four, LOFAMO_KILLS times, and logs the time from just before signal 9 to the node's row on the
// page, by this machine's clock. The bound is far above the desired second, because other processes use the processor
// too.
func (p *page) killed(t trial, node string) {
	t.Helper()
	kills := 1
	if s := os.Getenv("LOFAMO_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil || kills < 1 {
			t.Fatalf("LOFAMO_KILLS=%s: want a number from 1 on", s)
		}
	}
	t.mayFail(node, "node")
	var took []time.Duration
	for range kills {
		p.do(t.T, "normal 4")
		p.do(t.T, "look "+node)
		before := time.Now()
		t.inject(node, simple(cluster.KillNode))
		at, err := strconv.ParseInt(p.do(t.T, "turned"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.UnixMilli(at).Sub(before).Round(time.Millisecond))
		t.heal(node)
	}
	slices.Sort(took)
	t.Logf("a killed node is on the page after %v: median %s, worst %s", took, took[len(took)/2], took[len(took)-1])
	if worst := took[len(took)-1]; worst > 10*time.Second {
		t.Errorf("a killed node is on the page after %s: want a second, and ten at most", worst)
	}
}
