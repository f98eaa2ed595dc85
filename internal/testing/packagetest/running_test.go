package packagetest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// normal reports whether the node is NORMAL in the map.
func (m *machine) normal() bool { return strings.Contains(m.ctl("get", "nodes"), "NORMAL") }

// stacks matches the journal lines of an aborted daemon's stack traces.
var stacks = regexp.MustCompile(`(?m)^.* lofamo-\w+\[\d+\]: (?:\s|\S+\(|r\w+ +0x|created by|[cfg]s +0x).*\n`)

// why returns the state of the machine after a timeout.
func (m *machine) why() string {
	return m.ctl("get", "nodes", "-o", "wide") + m.run("systemctl", "list-units", "--all", "--no-pager",
		"lofamo*") + stacks.ReplaceAllString(m.run("journalctl", "--no-pager", "-n", "400"), "")
}

// main returns the main process of a unit, or "0".
func (m *machine) main(unit string) string {
	return strings.TrimSpace(m.run("systemctl", "show", "-P", "MainPID", unit))
}

// halves returns the processes of both halves.
func (m *machine) halves() []string {
	out, _ := m.try("pgrep", "-f", "lofamo-agent (host|dnp)") // 1: none
	return strings.Fields(out)
}

// runs checks that both halves run the installed program, or that they run another one.
func (m *machine) runs(when string, installed bool) {
	m.t.Helper()
	want := m.run("lofamo-agent", "version")
	halves := m.halves()
	if len(halves) != 2 {
		m.t.Errorf("%s: halves are processes %q\n%s", when, halves, m.why())
	}
	for _, pid := range halves {
		if is := m.run("/proc/"+pid+"/exe", "version"); (is == want) != installed {
			m.t.Errorf("%s: process %s is %sinstalled is %s", when, pid, is, want)
		}
	}
}

// serves waits until both halves and the daemons serve and the node is NORMAL in the map.
func (m *machine) serves(when string, how manager) {
	m.t.Helper()
	m.eventually(when+": all is well", func() bool {
		_, err := m.try("lofamo-agent", "status", "--config", "/etc/lofamo/agent.yaml", "--live", "--ready")
		return err == nil && m.active(how.units) && m.normal()
	}, m.why)
}

// active reports whether all the units are active. The exit code of systemctl says it of any one.
func (m *machine) active(units []string) bool {
	out, _ := m.try(append([]string{"systemctl", "is-active"}, units...)...)
	states := strings.Fields(out)
	return len(states) == len(units) && !slices.ContainsFunc(states, func(s string) bool { return s != "active" })
}

// held is a drop-in for the agent's units, such as an operator may have: a starting daemon waits while a file exists.
const held = `[Service]
ExecStartPre=/bin/sh -c 'while test -e /run/hold; do sleep 0.1; done'
`

// hanging is the drop-in for units whose processes will hang: it shortens the watchdog time.
const hanging = `[Service]
WatchdogSec=10
`

// dropIn writes a drop-in of a unit.
func (m *machine) dropIn(unit, text string) {
	m.t.Helper()
	dir := filepath.Join(m.root, "etc/systemd/system", unit+".service.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "test.conf"), []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// upgraded installs the next version over the running one, first with a failing script, and then the first version
// again while a killed daemon is restarting. The configuration stays, and the halves become processes of the installed
// program.
func upgraded(m *machine, how manager) {
	t := m.t
	conf, err := os.ReadFile(filepath.Join(m.root, "/etc/lofamo/agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	upgrade := how.command(next, "lofamo-agent")
	m.run("mount", "--bind", "/bin/false", "/usr/bin/systemd-sysusers")
	said, err := m.try(upgrade...)
	m.run("umount", "/usr/bin/systemd-sysusers")
	if err == nil && how.mend != nil {
		t.Errorf("a script that fails is not told of: %s", said)
	}
	m.runs("half done", false)
	m.eventually("half done: the node is NORMAL", m.normal, m.why)
	if how.mend != nil {
		upgrade = how.mend
	}
	m.run(upgrade...)
	m.runs("upgraded", true)
	m.serves("upgraded", how)

	for _, u := range how.units {
		m.dropIn(u, held)
	}
	m.run("systemctl", "daemon-reload")
	m.run("touch", "/run/hold")
	first := how.units[0]
	halves, executor := m.halves(), m.main("lofamo-executor")
	m.run("systemctl", "kill", "--kill-whom=main", "-s", "KILL", first, "lofamo-executor")
	m.eventually(first+" is activating", func() bool {
		return m.run("systemctl", "show", "-P", "SubState", first) == "start-pre\n"
	}, m.why)
	if now := m.halves(); !slices.Equal(now, halves) {
		t.Errorf("with their daemon killed halves are processes %q, not %q", now, halves)
	}
	over := make(chan error, 1)
	go func() {
		out, err := m.try(how.command(this, "lofamo-agent")...)
		said = out
		over <- err
	}()
	ended := false
	m.eventually("the package is configured", func() bool {
		select {
		case err = <-over:
			ended = true
			return true
		default:
			_, none := m.try("pgrep", "-f", "lofamo-agent.postinst configure|rpm-tmp")
			return none == nil
		}
	}, m.why)
	m.run("rm", "/run/hold")
	if !ended {
		err = <-over
	}
	if err != nil {
		t.Fatalf("the version of before: %v\n%s", err, said)
	}
	m.runs("this version again", true)
	m.serves("this version again", how)
	if now := m.main("lofamo-executor"); now == "0" || now == executor {
		t.Errorf("the executor process was killed, and is process %s", now)
	}
	if now, err := os.ReadFile(filepath.Join(m.root, "/etc/lofamo/agent.yaml")); err != nil || !bytes.Equal(conf, now) {
		t.Errorf("the upgrade changed the configuration: %v", err)
	}

	supervisor := m.main("lofamo-supervisor")
	how.install(m, this, "lofamo-supervisor")
	m.eventually("the supervisor that was installed serves",
		func() bool { return m.main("lofamo-supervisor") != supervisor && m.normal() }, m.why)
}

// supervised checks that systemd detects daemons that hang, ends and restarts them. The node's daemons adopt the
// running halves. When the watchdog aborts a process, Go's runtime exits with the code of a refused configuration,
// after which the units do not restart it.
func supervised(m *machine, how manager) {
	for _, u := range how.units { // not earlier: during the upgrade a daemon on a busy machine may be late
		m.dropIn(u, hanging)
	}
	m.run("systemctl", "daemon-reload")
	m.run(append([]string{"systemctl", "restart"}, how.units...)...)
	m.serves("with short watchdogs", how)
	units := append(slices.Clone(how.units), "lofamo-executor", "lofamo-supervisor")
	halves, before := m.halves(), map[string]string{}
	for _, u := range units {
		before[u] = m.main(u)
		signal := "STOP"
		if u == "lofamo-supervisor" {
			// The watchdog's signal, and the end of a panic: on a busy machine the process could miss a shortened
			// watchdog time.
			signal = "ABRT"
		}
		m.run("systemctl", "kill", "--kill-whom=main", "-s", signal, u)
	}
	m.eventually("daemons that hang are started again", func() bool {
		for _, u := range units {
			if now := m.main(u); now == "0" || now == before[u] {
				return false
			}
		}
		return m.active(units)
	}, m.why)
	if now := m.halves(); !slices.Equal(now, halves) {
		m.t.Errorf("halves of daemons that hung are processes %q, not %q", now, halves)
	}
	m.serves("daemons that hung", how)
}

// refused checks that an upgrade leaves every running process whose configuration is refused. It also checks that the node's
// daemons stay down after a refused configuration if no half runs, and restart while one runs.
func refused(m *machine, how manager) {
	const conf, wrong = "/etc/lofamo/agent.yaml", "frobnicate: 1"
	down := func(u string) bool {
		state, _ := m.try("systemctl", "show", "-P", "ActiveState", u)
		code, _ := m.try("systemctl", "show", "-P", "ExecMainStatus", u)
		return strings.TrimSpace(state) == "failed" && strings.TrimSpace(code) == "78"
	}
	m.run("sh", "-c", "echo '"+wrong+"' >>"+conf)
	halves := m.halves()
	upgradeRefused(m, how)
	m.run(append([]string{"systemctl", "kill", "--kill-whom=main", "-s", "KILL"}, how.units...)...)
	for _, u := range how.units {
		m.eventually(u+" tries again while its halves run", func() bool {
			out, err := m.try("systemctl", "show", "-P", "NRestarts", u)
			n, bad := strconv.Atoi(strings.TrimSpace(out))
			return err == nil && bad == nil && n > 1
		}, m.why)
	}
	if now := m.halves(); !slices.Equal(now, halves) {
		m.t.Errorf("halves of daemons with a refused configuration are processes %q, not %q", now, halves)
	}
	m.run("sed", "-i", "/^"+wrong+"$/d", conf)
	m.serves("a repaired configuration", how)

	m.run(append([]string{"systemctl", "stop"}, how.units...)...)
	m.run("sh", "-c", "echo '"+wrong+"' >>"+conf)
	for _, u := range how.units {
		_, _ = m.try("systemctl", "start", u)
		m.eventually(u+" stays down", func() bool { return down(u) }, m.why)
	}
	m.run("sed", "-i", "/^"+wrong+"$/d", conf)
	m.run(append([]string{"systemctl", "start"}, how.units...)...)
	m.serves("after a refused configuration", how)
}

// upgradeRefused installs packages whose programs refuse the configuration: that of the agent is wrong already. Every process stays,
// until its package is installed again after the repair.
func upgradeRefused(m *machine, how manager) {
	const wrong = "frobnicate: 1"
	files := []string{"/etc/lofamo/supervisor.yaml", "/etc/lofamo/executor.yaml"}
	units := append(slices.Clone(how.units), "lofamo-supervisor", "lofamo-executor")
	pids := func() (out []string) {
		for _, u := range units {
			out = append(out, m.main(u))
		}
		return append(out, m.halves()...)
	}
	m.run(append([]string{"sed", "-i", "$a " + wrong}, files...)...)
	before := pids()
	said := m.run(how.command(this, "lofamo-agent", "lofamo-supervisor", "lofamo-executor")...)
	for _, u := range units {
		if !strings.Contains(said, u+" keeps running the previous version") {
			m.t.Errorf("the upgrade says nothing about %s:\n%s", u, said)
		}
	}
	time.Sleep(3 * time.Second) // a restart without waiting would end a process by now
	if now := pids(); !slices.Equal(now, before) {
		m.t.Errorf("after an upgrade with a refused configuration processes are %q, not %q", now, before)
	}
	m.run(append([]string{"sed", "-i", "/^" + wrong + "$/d"}, files...)...)
}

// executing sets up an executor process, by the commands of docs/executor-process.md.
func executing(m *machine) {
	m.run("lofamoctl", "cluster", "issue", "executor", "x1", "--out", "/operator")
	m.run("install", "-m", "0644", "/operator/executors/x1/pki/executor.pem", "/etc/lofamo/pki/executor.pem")
	m.run("install", "-m", "0600", "-o", "lofamo-executor", "/operator/executors/x1/pki/executor.key", "/etc/lofamo/pki/executor.key")
	const conf = `cluster: one
listen: 10.0.0.1:7950
tls: {ca: /etc/lofamo/pki/ca.pem, cert: /etc/lofamo/pki/executor.pem, key: /etc/lofamo/pki/executor.key}
commands: [{name: nothing, path: /usr/bin/true}]
`
	if err := os.WriteFile(filepath.Join(m.root, "etc/lofamo/executor.yaml"), []byte(conf), 0o644); err != nil {
		m.t.Fatal(err)
	}
	m.run("install", "-d", "-m", "0700", "-o", "lofamo-executor", "-g", "lofamo-executor", "/var/lib/lofamo/executor")
	m.run("setpriv", "--reuid=lofamo-executor", "--regid=lofamo-executor", "--init-groups", "lofamo-executor", "init", "--config",
		"/etc/lofamo/executor.yaml")
	m.dropIn("lofamo-executor", hanging)
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "enable", "--now", "lofamo-executor")
}

// looked runs the commands that the pages and runbooks give for machines with packages, and opens a session as
// docs/grafana.md does.
func looked(m *machine) {
	for _, c := range [][]string{
		{"lofamo-agent", "status", "--config", "/etc/lofamo/agent.yaml"}, {"systemctl", "status", "lofamo-executor"}, {"journalctl", "-u",
			"lofamo-executor", "-n", "50"}, {"journalctl", "-u", "lofamo-supervisor"},
	} {
		if out := m.run(c...); len(out) < 100 {
			m.t.Errorf("%q says %q", c, out)
		}
	}
	const login = `link=$(lofamoctl web --ca ca.pem --cert viewer.pem --key viewer.key --address 10.0.0.101:7949 |
  grep -o 'http[^ ]*#login=[^ ]*')
curl -s -D - -o /dev/null --cacert /var/lib/lofamo/supervisor/web.pem -H 'Content-Type: application/json' \
  -d "{\"token\":\"${link#*=}\"}" "${link%%/#*}/api/login" |
  grep -i '^set-cookie'`
	if out := m.run("bash", "-c", "cd /operator/operators\n"+login); !strings.Contains(out, "lofamo-") {
		m.t.Errorf("the login says %q", out)
	}
}

var pageLink = regexp.MustCompile(`\]\(([^)#]+)`)

// documents are the file types of documentation.
var documents = []string{".md", ".svg", ".yaml", ".yml", ".json", ".gz"}

// documented checks that a package has its pages and no other files, and that every link in them leads to one of the
// pages.
func documented(t *testing.T, dir string) {
	t.Helper()
	var pages []string
	for _, pattern := range []string{"*.md", "runbooks/*.md"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, files...)
	}
	for _, want := range []string{"install.md", "operations.md", "troubleshooting.md", "metrics.md", "security.md", "configuration.md",
		"responses.md", "executor-process.md", "runbooks/LofamoNodeFailed.md"} {
		if !slices.Contains(pages, filepath.Join(dir, want)) {
			t.Errorf("%s has no page %s", dir, want)
		}
	}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "copyright" && !slices.Contains(documents, filepath.Ext(path)) {
			t.Errorf("%s: want no such file in documentation", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	links := 0
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range pageLink.FindAllSubmatch(b, -1) {
			to := string(l[1])
			if filepath.Base(page) == "CHANGELOG.md" || strings.HasPrefix(to, "http") {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), to)); err != nil {
				t.Errorf("%s: a link leads nowhere: %v", page, err)
			}
		}
	}
	if links < 100 {
		t.Errorf("%s: only %d links are found: the search is wrong", dir, links)
	}
}
