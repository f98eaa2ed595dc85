package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/pdeathsig"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// hall is the example's cluster: the operator's files, and its machines, each a directory that its processes see as
// /etc and /var/lib.
type hall struct {
	*testing.T
	dir     string // inventory.yaml, operator, machines/ID
	servers string
	net     string               // the first three numbers of all addresses, which are this process's own: the ports are the defaults
	procs   map[string]*exec.Cmd // of the machines, by ID
}

// sees gives a program a machine's /etc/lofamo and /var/lib: the configuration files are those that the packages'
// services would read. The overlay has a place for the former on machines without one, and no file that changes while
// it is mounted.
const sees = `set -e
mount --make-rprivate /
mount -t overlay -o "lowerdir=$1/over:/etc" overlay /etc
mount --bind "$1/etc/lofamo" /etc/lofamo
mount --bind "$1/var/lib" /var/lib
shift
exec "$@"`

var (
	hallNodes       = []string{"n0-0-0", "n1-0-0", "n0-1-0", "n1-1-0", "n0-0-1", "n1-0-1", "n0-1-1", "n1-1-1"}
	hallSupervisors = []string{"s1", "s2", "s3"}
)

// TestInventoryClusterIsMadeAndRekeyed makes the cluster of the shipped example, on loopback addresses: made, joined,
// started; another machine with new keys replaces one; and during operation every key is changed, also the authority's,
// without any node being called FAILED.
func TestInventoryClusterIsMadeAndRekeyed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		requirements.Missing(t, "machines of their own want root")
	}
	h := newHall(t)
	h.ctl("cluster", "init", filepath.Join(h.dir, "inventory.yaml"), "--out", h.operator())
	for role, name := range map[string]string{"approver": "anna", "executor": "x1"} {
		cert, _, _ := strings.Cut(h.ctl("cluster", "issue", role, name, "--out", h.operator()), ",")
		if _, err := os.Stat(cert); err != nil {
			t.Errorf("issued: %v", err)
		}
	}
	for _, s := range hallSupervisors {
		h.join("supervisors", s)
		h.start(s)
	}
	for _, n := range hallNodes {
		h.join("nodes", n)
		h.start(n)
	}
	h.settled()

	// A machine is lost; another one replaces it, with the same name and new keys.
	const lost = "n1-0-1"
	mark := h.revision()
	h.loses(lost)
	h.eventually("the lost machine is FAILED", func() bool { return h.called(mark, lost, "node", "FAILED") })
	if err := os.RemoveAll(h.machine(lost)); err != nil {
		t.Fatal(err)
	}
	if out := h.ctl("cluster", "add-node", "--renew", lost, "--out", h.operator()); !strings.Contains(out, "nodes/"+lost) ||
		strings.Count(out, "nodes/") != 1 {
		t.Errorf("add-node: %s", out)
	}
	if out := h.ctl("cluster", "add-node", filepath.Join(h.dir, "inventory.yaml"), "--out", h.operator()); strings.Contains(out, "nodes/") ||
		strings.Contains(out, "supervisors/") {
		t.Errorf("add-node without a change: %s", out)
	}
	h.join("nodes", lost)
	h.start(lost)
	h.eventually("the machine in its place is NORMAL", func() bool { return h.called(mark, lost, "node", "NORMAL") })

	mark = h.revision()
	if err := os.CopyFS(filepath.Join(h.dir, "old"), os.DirFS(filepath.Join(h.operator(), "operators"))); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"add", "use", "remove"} {
		args := []string{"cluster", "rotate-keys", "--step", step, "--out", h.operator()}
		if step == "add" {
			args = append(args, "--authority")
		}
		h.ctl(args...)
		if step == "remove" {
			// Members without the step are still accepted: some replicas and nodes suffice to show it.
			h.takesOn(hallSupervisors[:1], hallNodes[:1])
			break
		}
		h.takesOn(hallSupervisors, hallNodes)
	}
	h.settled()
	h.eventually("every restart of a half to be in the map's history", func() bool { // the last ones may be committed later
		restarted := 0
		for _, e := range h.events(mark) {
			if e.Kind == "RECOVERY_CHANGED" {
				restarted++
			}
		}
		return restarted >= 2*(2*len(hallNodes)+1)
	})
	for _, e := range h.events(mark) { // the new machine's links may still be FAILED at first, with another reason
		if e.To == "FAILED" && e.From != "FAILED" || e.Component == "node" && e.To == "UNKNOWN" {
			t.Errorf("called something worse than SICK while keys were changed: %+v", e)
		}
	}
	// Certificates of the old authority are worthless now.
	h.servers, _, _ = strings.Cut(h.servers, ",")
	if out, err := h.as(filepath.Join(h.dir, "old"), "get", "nodes"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with a certificate of the old authority: %v\n%s", err, out)
	}
}

func newHall(t *testing.T) *hall {
	t.Helper()
	b, err := os.ReadFile("../../deploy/examples/inventory.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Relaxed, and join adds more misses: a busy machine takes longer to start a process than the default periods allow, so a
	// restarted half would be called FAILED for that time, and rightly so.
	return hallOf(t, 128, strings.Replace(string(b), "preset: default", "preset: relaxed", 1))
}

// hallOf makes the directory of an inventory whose addresses are 10.0.0.X. The machines get addresses of this process alone,
// 127.N.M.X, where N is one of the 64 from octet on.
func hallOf(t *testing.T, octet int, inventory string) *hall {
	t.Helper()
	dir, err := os.MkdirTemp("", "lofamo-hall-") // not t.TempDir: its name is too long for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	h := &hall{T: t, dir: dir, net: fmt.Sprintf("127.%d.%d.", octet+pid>>8&0x3f, pid&0xff), procs: map[string]*exec.Cmd{}}
	t.Cleanup(func() {
		var all sync.WaitGroup
		for id, cmd := range h.procs {
			all.Go(func() { h.end(id, cmd) })
		}
		all.Wait()
		if t.Failed() {
			t.Logf("the machines and their logs are kept: %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	inventory = strings.ReplaceAll(inventory, " 10.0.0.", " "+h.net)
	if err := os.WriteFile(filepath.Join(dir, "inventory.yaml"), []byte(inventory), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range hallSupervisors {
		h.servers += fmt.Sprintf("%s%d:7946,", h.net, 101+i)
	}
	h.servers = strings.TrimSuffix(h.servers, ",")
	return h
}

func (h *hall) operator() string         { return filepath.Join(h.dir, "operator") }
func (h *hall) machine(id string) string { return filepath.Join(h.dir, "machines", id) }

// ctl runs lofamoctl as the operator.
// ctl runs lofamoctl. Without a leader it repeats the command, as the message says: on a busy machine the leader may change at any time.
func (h *hall) ctl(args ...string) string {
	h.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		out, err := h.try(args...)
		if err == nil {
			return string(out)
		}
		if !strings.Contains(err.Error(), "no leader: nothing was changed") || time.Now().After(end) {
			h.Fatalf("lofamoctl %q: %v\n%s", args, err, out)
		}
	}
}

func (h *hall) try(args ...string) ([]byte, error) {
	return h.as(filepath.Join(h.operator(), "operators"), args...)
}

// as runs lofamoctl with an operator's certificate of that directory.
func (h *hall) as(certs string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	if args[0] != "cluster" {
		in := func(name string) string { return filepath.Join(certs, name) }
		args = append([]string{"--server", h.servers, "--ca", in("ca.pem"), "--cert", in("operator.pem"), "--key", in("operator.key")}, args...)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "lofamoctl"), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &stderr)
	}
	return out, err
}

// join carries a member's bundle to its machine and installs it.
func (h *hall) join(kind, id string) {
	h.Helper()
	h.build(id)
	h.ctl("cluster", "join", filepath.Join(h.operator(), kind, id), "--root", h.machine(id))
	// Changed on the machine, which later bundles keep: the inventory has presets only.
	path := filepath.Join(h.machine(id), strings.TrimPrefix(configurationOf(id), "/"))
	b, err := os.ReadFile(path)
	if err == nil && !bytes.Contains(b, []byte("\nperiods:")) {
		err = os.WriteFile(path, append(b, "periods: {readMisses: 16, linkMisses: 16}\n"...), 0o600)
	}
	if err != nil {
		h.Fatal(err)
	}
}

// build makes the directories of a machine.
func (h *hall) build(id string) {
	h.Helper()
	for _, d := range []string{"over/lofamo", "etc/lofamo", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(h.machine(id), d), 0o755); err != nil {
			h.Fatal(err)
		}
	}
}

// configurationOf returns a machine's configuration file, as its programs see it.
func configurationOf(id string) string {
	if strings.HasPrefix(id, "s") {
		return "/etc/lofamo/supervisor.yaml"
	}
	return "/etc/lofamo/agent.yaml"
}

// on is a program on a machine.
func (h *hall) on(ctx context.Context, id, program string, args ...string) *exec.Cmd {
	argv := append([]string{"--mount", "sh", "-c", sees, "sh", h.machine(id), filepath.Join(binaries, program)}, args...)
	return exec.CommandContext(ctx, "unshare", argv...)
}

func (h *hall) start(id string) {
	h.Helper()
	program := "lofamo-agent"
	if strings.HasPrefix(id, "s") {
		program = "lofamo-supervisor"
	}
	h.run(id, program, "run", "--config", configurationOf(id))
}

// run starts a program on a machine.
func (h *hall) run(id, program string, args ...string) {
	h.Helper()
	log, err := os.OpenFile(filepath.Join(h.dir, id+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		h.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := h.on(context.WithoutCancel(h.Context()), id, program, args...) // the test's end stops it
	cmd.Stdout, cmd.Stderr = log, log
	if err := pdeathsig.Start(cmd, syscall.SIGTERM); err != nil { // upon which a daemon ends its halves, too
		h.Fatal(err)
	}
	h.procs[id] = cmd
}

// stop asks a machine's process to end, and waits until it has.
func (h *hall) stop(id string) {
	cmd := h.procs[id]
	delete(h.procs, id)
	h.end(id, cmd)
}

func (h *hall) end(id string, cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	t := time.AfterFunc(patience, func() {
		killed, err := killAll(cmd)
		h.Errorf("%s did not end within %s: %d processes killed, %v", id, patience, killed, err)
	})
	_ = cmd.Wait()
	t.Stop()
}

// loses ends all of a machine's processes at once.
func (h *hall) loses(id string) {
	h.Helper()
	cmd := h.procs[id]
	delete(h.procs, id)
	killed, err := killAll(cmd)
	if err != nil || killed < 3 {
		h.Fatalf("%d processes of %s were killed, %v: want the daemon and both halves", killed, id, err)
	}
	_ = cmd.Wait()
}

// killAll kills a daemon and then all processes in its mount namespace. The daemon dies first, because it would restart
// its halves.
func killAll(daemon *exec.Cmd) (killed int, err error) {
	sees, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", daemon.Process.Pid))
	if err != nil {
		return 0, err
	}
	if err := daemon.Process.Kill(); err != nil {
		return 0, err
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return 1, err
	}
	for _, ns := range all {
		if other, err := os.Readlink(ns); err != nil || other != sees {
			continue // another's, or it is gone
		}
		pid, err := strconv.Atoi(strings.Split(ns, "/")[2])
		if err != nil {
			return killed, err
		}
		if pid == daemon.Process.Pid {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return killed, err
		}
		killed++
	}
	return killed + 1, nil
}

// takesOn carries bundles to their machines, and restarts their processes as in docs/install.md: replicas one after the
// other, and beside them the nodes, neighbours one after the other.
func (h *hall) takesOn(replicas, members []string) {
	h.Helper()
	for _, s := range replicas {
		h.join("supervisors", s)
	}
	for _, n := range members {
		h.join("nodes", n)
	}
	var nodes sync.WaitGroup
	defer nodes.Wait()
	nodes.Go(func() {
		for parity := range 2 {
			var group sync.WaitGroup
			for _, n := range members {
				if strings.Count(n, "1")%2 == parity {
					group.Go(func() { h.restart(n) })
				}
			}
			group.Wait()
		}
	})
	for _, s := range replicas {
		h.stop(s)
		h.start(s)
		h.eventually(s+" is healthy again", func() bool {
			out, err := h.try("supervisor", "list", "-o", "json")
			return err == nil && strings.Count(string(out), `"healthy": true`) == len(hallSupervisors)
		})
	}
}

// restart has a node's halves restarted, one after the other.
func (h *hall) restart(id string) { h.restartWith(id, "/etc/lofamo/agent.yaml") }

func (h *hall) restartWith(id, file string) {
	ctx, cancel := context.WithTimeout(h.Context(), settling)
	defer cancel()
	out, err := h.on(ctx, id, "lofamo-agent", "restart", "--config", file).CombinedOutput()
	if err != nil || strings.Count(string(out), "has passed its self-test") != 2 {
		h.Errorf("restart of %s: %v\n%s", id, err, out)
	}
}

func (h *hall) eventually(what string, holds func() bool) {
	h.Helper()
	began := time.Now()
	defer func() { h.Logf("%s: after %.1f s", what, time.Since(began).Seconds()) }()
	for end := began.Add(settling); !holds(); time.Sleep(100 * time.Millisecond) { // each look starts a program
		if time.Now().After(end) {
			nodes, err := h.try("get", "nodes", "-o", "wide")
			incidents, failed := h.try("status")
			h.Fatalf("not within %s: %s\n%s%s%v", settling, what, nodes, incidents, errors.Join(err, failed))
		}
	}
}

// settled waits until the map calls all nodes NORMAL and knows all their components.
func (h *hall) settled() {
	h.Helper()
	h.settledOn(len(hallNodes))
}

// settledOn is settled for a number of nodes.
func (h *hall) settledOn(nodes int) {
	h.Helper()
	h.eventually("all nodes are NORMAL", func() bool {
		var list struct {
			Nodes []struct {
				State      string
				Components []struct{ Name, State string }
			}
		}
		out, err := h.try("get", "nodes", "-o", "json")
		if err != nil || json.Unmarshal(out, &list) != nil || len(list.Nodes) != nodes {
			return false
		}
		for _, n := range list.Nodes {
			for _, c := range n.Components {
				if strings.HasPrefix(c.Name, "link/") && c.State != "NORMAL" {
					return false
				}
			}
			if n.State != "NORMAL" {
				return false
			}
		}
		return true
	})
}

// change is an event of the map.
type change struct{ Revision, Node, Component, Kind, From, To, Reason string }

// events are all since a revision, read to the end.
func (h *hall) events(since string) []change {
	h.Helper()
	var list struct{ Events []change }
	out := answered(h.T, "read the events", func() ([]byte, error) {
		return h.try("get", "events", "--since-revision", since, "-o", "json")
	})
	if err := json.Unmarshal(out, &list); err != nil {
		h.Fatal(err)
	}
	return list.Events
}

func (h *hall) called(since, node, component, state string) bool {
	for _, e := range h.events(since) {
		if e.Node == node && e.Component == component && e.To == state {
			return true
		}
	}
	return false
}

// revision is the map's.
func (h *hall) revision() string {
	h.Helper()
	var list struct{ Revision string }
	if err := json.Unmarshal([]byte(h.ctl("get", "events", "--limit", "1", "-o", "json")), &list); err != nil {
		h.Fatal(err)
	}
	return list.Revision
}
