package e2e

import (
	"bufio"
	"cmp"
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
	for attempt := 1; ; attempt++ {
		p := t.startBrowser(asks, node, chromium, web)
		_, err := p.try("open " + t.login(asks, id))
		if err == nil {
			return p
		}
		if attempt == 3 {
			asks.Fatal(err)
		}
		asks.Logf("another browser, as this one does not open the page: %v", err) // a browser may hang when it starts
		_ = p.browser.Kill()
	}
}

func (t trial) startBrowser(asks *testing.T, node, chromium, web string) *page {
	asks.Helper()
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
	return &page{in, bufio.NewScanner(out), cmd.Process}
}

// do sends the browser a command, and returns the result. It fails the test if there is none.
func (p *page) do(t *testing.T, what string) string {
	t.Helper()
	found, err := p.try(what)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// try is do, but returns the error. It kills a browser that hangs.
func (p *page) try(what string) (string, error) {
	if _, err := fmt.Fprintln(p.in, what); err != nil {
		return "", err
	}
	hangs := time.AfterFunc(3*time.Minute, func() { _ = p.browser.Kill() })
	defer hangs.Stop()
	if !p.lines.Scan() {
		return "", fmt.Errorf("the browser is gone: %w", cmp.Or(p.lines.Err(), io.EOF))
	}
	found, ok := strings.CutPrefix(p.lines.Text(), "ok ")
	if !ok {
		return "", fmt.Errorf("the browser: %s: %s", what, p.lines.Text())
	}
	return found, nil
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
	if worst := took[len(took)-1]; worst > 30*time.Second {
		t.Errorf("a killed node is on the page after %s: want a second, and thirty at most on a busy machine", worst)
	}
}
