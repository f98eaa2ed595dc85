package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/localcluster"
	"github.com/lofamo/lofamo/internal/needs"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/weblogin"
)

// onThePage: what happens to real processes is in the browser: a node that is killed, and that two of three supervisors are gone. How long a
// killed node takes is said; LOFAMO_KILLS has it killed more often than once.
func onThePage(t trial) {
	node, chromium := needs.Program(t, "Node.js", "node"), needs.Program(t, "Debian's package chromium", "chromium")
	web := filepath.Join("..", "..", "web")
	for _, made := range []string{filepath.Join(web, "node_modules", "playwright-core"), filepath.Join("..", "supervisor", "web", "dist", "app", "index.html")} {
		if _, err := os.Stat(made); err != nil {
			needs.Missing(t, "the page was not built: make web")
		}
	}
	ids := t.leaderFirst()
	cmd := exec.CommandContext(t.Context(), node, "test/cluster.mjs")
	cmd.Dir, cmd.Env, cmd.Stderr = web, append(os.Environ(), "LOFAMO_CHROMIUM="+chromium), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	done := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "ask":
			answer := "ok"
			switch what, arg, _ := strings.Cut(rest, " "); what {
			case "login":
				answer = t.login(ids[2])
			case "kill":
				answer = fmt.Sprint(time.Now().UnixMilli())
				t.mayFail(arg, "node")
				t.inject(arg, simple(localcluster.KillNode))
			case "heal":
				t.heal(arg)
			case "alone":
				t.kill(ids[0], ids[1])
			case "together":
				t.start(ids[0], ids[1])
			default:
				t.Errorf("the browser asks for %q", rest)
			}
			if _, err := fmt.Fprintln(in, answer); err != nil {
				t.Error(err)
			}
		case "say":
			t.Log(rest)
		case "done":
			done = true
		default:
			t.Errorf("the browser: %s", rest)
		}
	}
	if err := cmd.Wait(); err != nil || !done {
		t.Errorf("the browser has not come to its end: %v", err)
	}
}

// login is a link to a supervisor's page, for somebody who may look.
func (t trial) login(id string) string {
	t.Helper()
	sup, err := t.Cluster.Supervisor(id)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := pki.LoadSigner(t.Cluster.PKI("viewer.pem"), t.Cluster.PKI("viewer.key"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := weblogin.NewLogin(signer, id, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + sup.Web + "/#login=" + token
}
