package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/daemon"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestMachinesEnrol begins with three supervisors and no node. Machines that have one address and a token become nodes:
// each makes its own keys, gets certificates and a place, and the map shows it NORMAL. A node whose address changed needs no
// token, and a copy of its state directory is refused while it lives. A token that is used up, and a name that is taken, are
// refused with the reason. A new machine may have the address of a lost one, which comes back with a token for its name. No
// other node is FAILED meanwhile.
func TestMachinesEnrol(t *testing.T) {
	t.Parallel()
	h, four := emptyHall(t, 192, 4)
	begin := h.revision()
	token := func(args ...string) string { return h.ctl(append([]string{"token", "create"}, args...)...) }

	for i := range 4 {
		h.enrols(fmt.Sprintf("n%d", i), i, four)
	}
	h.settledOn(4)
	if out := h.ctl("token", "list"); !strings.Contains(out, "4/4") || strings.Contains(out, strings.Split(four, ".")[2]) {
		t.Errorf("token list: %s: want all four uses, and no secret", out)
	}

	out := h.ctl("get", "nodes", "-l", "switch=sw1")
	if !strings.Contains(out, "n1") || !strings.Contains(out, "n3") || strings.Contains(out, "n2") {
		t.Errorf("nodes with switch=sw1: %s: want n1 and n3", out)
	}
	h.refused("n9", 9, four, "used up")
	h.refused("n1", 9, token(), "n1: there is one, and it lives")
	h.waits("n9", 1, token(), "another program of this machine listens there") // n1's address
	h.refused("n9", 9, token("--node", "n8"), "is for node n8")
	h.refused("n9", 9, token("--names", "gpu-*,n[0-8]"), "is for names like gpu-*, n[0-8]")
	revoked := token()
	h.ctl("token", "revoke", strings.TrimSpace(revoked))
	h.refused("n9", 9, revoked, "unknown")

	h.stop("n2")
	h.enrols("n2", 12, "none") // its machine has another address, and needs no token
	h.settledOn(4)
	h.refusesCopy("n2", 13)

	mark := h.revision()
	h.loses("n3")
	h.eventually("the lost machine is FAILED", func() bool { return h.called(mark, "n3", "node", "FAILED") })
	h.enrols("n5", 3, token()) // a new machine, at the address of the lost one
	h.eventually("the new machine is NORMAL", func() bool { return h.called(mark, "n5", "node", "NORMAL") })
	h.stop("n5")
	h.ctl("node", "leave", "n5", "--forget")
	if err := os.RemoveAll(h.machine("n3")); err != nil {
		t.Fatal(err)
	}
	h.enrols("n3", 3, token("--node", "n3"))
	h.settledOn(4)

	h.ctl("node", "leave", "n0", "--forget")
	h.enrols("n4", 4, token())
	h.settledOn(4)
	h.forgottenMeanwhile("n1", 1, token())
	for _, e := range h.events(begin) {
		if e.To == "FAILED" && e.Component == "node" && e.Node != "n3" {
			t.Errorf("called FAILED: %+v", e)
		}
	}
}

// forgottenMeanwhile: a node that was forgotten while it was down starts when no supervisor answers, and so with its stored enrolment. When
// they answer again, they enrol it anew, and its agent ends so that it is started again.
func (h *hall) forgottenMeanwhile(id string, number int, token string) {
	h.Helper()
	h.stop(id)
	h.ctl("node", "leave", id, "--forget", "--revoke=false")
	for _, s := range hallSupervisors {
		h.stop(s)
	}
	h.enrols(id, number, token)
	says := func(text string) int {
		b, err := os.ReadFile(filepath.Join(h.dir, id+".log"))
		if err != nil {
			h.Fatal(err)
		}
		return strings.Count(string(b), text)
	}
	h.eventually("it starts with its stored enrolment", func() bool { return says("recovery daemon runs") == 2 })
	agent := h.procs[id]
	delete(h.procs, id)
	for _, s := range hallSupervisors {
		h.start(s)
	}
	late := time.AfterFunc(settling, func() { _, _ = killAll(agent) })
	err := agent.Wait()
	if late.Stop(); err == nil || says(daemon.ErrEnrolledAnew.Error()) == 0 {
		h.Fatalf("the agent of a forgotten node: %v: want an end because it was enrolled anew", err)
	}
	h.enrols(id, number, token)
	h.settledOn(4)
}

// enrolment is the command line of a machine that becomes a node.
func (h *hall) enrolment(id string, number int, token string) []string {
	h.Helper()
	h.build(id)
	if err := os.WriteFile(filepath.Join(h.machine(id), "etc/lofamo/token"), []byte(token), 0o600); err != nil {
		h.Fatal(err)
	}
	return []string{"run", "--join", fmt.Sprintf("%s101:7944,%s102:7944", h.net, h.net), "--token-file", "/etc/lofamo/token", "--node", id,
		"--address", fmt.Sprintf("%s%d", h.net, 1+number), "--label", fmt.Sprintf("switch=sw%d", number%2)}
}

// enrols starts the agent of a machine that becomes a node.
func (h *hall) enrols(id string, number int, token string) {
	h.Helper()
	h.run(id, "lofamo-agent", h.enrolment(id, number, token)...)
}

// refused starts the agent of another machine with a name, which must end with a reason.
func (h *hall) refused(name string, number int, token, why string) {
	h.Helper()
	args := h.enrolment("stranger", number, token)
	args[6] = name
	ctx, cancel := context.WithTimeout(h.Context(), settling)
	defer cancel()
	out, err := h.on(ctx, "stranger", "lofamo-agent", args...).CombinedOutput()
	if err == nil || ctx.Err() != nil || !strings.Contains(string(out), why) {
		h.Errorf("%s with a token enrols: %v: want an end within %s with %q in\n%s", name, err, settling, why, out)
	}
	h.removesStranger()
}

// waits starts the agent of another machine with a name, which must log a reason and try again.
func (h *hall) waits(name string, number int, token, why string) {
	h.Helper()
	args := h.enrolment("stranger", number, token)
	args[6] = name
	h.run("stranger", "lofamo-agent", args...)
	h.eventually(name+" logs "+why, func() bool {
		b, err := os.ReadFile(filepath.Join(h.dir, "stranger.log"))
		return err == nil && strings.Contains(string(b), why)
	})
	h.stop("stranger")
	h.removesStranger()
}

func (h *hall) removesStranger() {
	h.Helper()
	if err := os.RemoveAll(h.machine("stranger")); err != nil {
		h.Error(err)
	}
}

// refusesCopy starts an agent with a copy of a node's state directory at another address, while the node lives.
func (h *hall) refusesCopy(id string, number int) {
	h.Helper()
	h.build("stranger")
	out, err := exec.CommandContext(h.Context(), "cp", "-a", h.machine(id)+"/var/lib/.", h.machine("stranger")+"/var/lib").CombinedOutput()
	if err != nil {
		h.Fatalf("copy the state directory: %v: %s", err, out)
	}
	h.refused(id, number, "none", id+": there is one, and it lives")
}

// TestEnrolledNodesAreRekeyed changes all keys, the authority too, of a cluster whose nodes have enrolled. These have no
// bundles: a restart of their halves gets them the new authorities and gossip keys, and the halves replace certificates of
// the former issuer.
func TestEnrolledNodesAreRekeyed(t *testing.T) {
	t.Parallel()
	h, token := emptyHall(t, 64, 3)
	for i := range 3 {
		h.enrols(fmt.Sprintf("n%d", i), i, token)
	}
	h.settledOn(3)
	mark := h.revision()
	for _, step := range []string{"add", "use", "remove"} {
		args := []string{"cluster", "rotate-keys", "--step", step, "--out", h.operator()}
		if step == "add" {
			args = append(args, "--authority")
		}
		h.ctl(args...)
		if step == "remove" { // other periods come with it
			for _, s := range hallSupervisors {
				h.replaces(s, "etc/lofamo/supervisor.yaml", "readMisses: 16", "readMisses: 15")
			}
		}
		h.takesOn(hallSupervisors, nil)
		for i := range 3 {
			h.restartWith(fmt.Sprintf("n%d", i), "/var/lib/lofamo/agent/joined/agent.yaml")
		}
		if step == "use" {
			h.eventually("no half has a certificate of the former issuer", func() bool {
				return h.halvesBy("earlier issuer") == 0 && h.halvesBy("good") == 6
			})
		}
	}
	h.settledOn(3)
	const joined = "var/lib/lofamo/agent/joined"
	if !h.has("n0", joined+"/answer.json", `"readMisses":15`) || !h.has("n0", joined+"/agent.yaml", "readMisses: 16") {
		t.Error("n0 does not keep the periods of its daemon for its halves, or has not got the new ones for the next daemon")
	}
	for _, e := range h.events(mark) {
		if e.To == "FAILED" && e.From != "FAILED" {
			t.Errorf("called FAILED while keys were changed: %+v", e)
		}
	}

	// Without a supervisor, the halves restart with their stored settings, and the command says so.
	for _, s := range hallSupervisors {
		h.stop(s)
	}
	out, err := h.on(t.Context(), "n0", "lofamo-agent", "restart", "--half", "host", "--config", "/"+joined+"/agent.yaml").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "has passed its self-test") || !strings.Contains(string(out), "stored settings") {
		t.Errorf("restart without supervisors: %v\n%s", err, out)
	}
}

// has reports whether a file of a machine has a text.
func (h *hall) has(id, file, text string) bool {
	h.Helper()
	b, err := os.ReadFile(filepath.Join(h.machine(id), file))
	if err != nil {
		h.Fatal(err)
	}
	return strings.Contains(string(b), text)
}

// replaces replaces a text in a file of a machine.
func (h *hall) replaces(id, file, from, to string) {
	h.Helper()
	path := filepath.Join(h.machine(id), file)
	b, err := os.ReadFile(path)
	if err == nil && strings.Count(string(b), from) != 1 {
		err = fmt.Errorf("%s: want %q once:\n%s", path, from, b)
	}
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(b), from, to, 1)), 0o600)
	}
	if err != nil {
		h.Fatal(err)
	}
}

// halvesBy counts the halves whose certificates have a status.
func (h *hall) halvesBy(status string) int {
	out, err := h.try("cert", "list")
	if err != nil {
		return -1
	}
	return len(regexp.MustCompile(`(?m)^node/n\d/\S+\s+`+status+`\s`).FindAll(out, -1))
}

// emptyHall starts three supervisors of a cluster without nodes, and makes a token for some. network is the hall's on loopback.
func emptyHall(t *testing.T, network, nodes int) (h *hall, token string) {
	t.Helper()
	if os.Geteuid() != 0 {
		requirements.Missing(t, "machines of their own want root")
	}
	h = hallOf(t, network, "cluster: hall8\npreset: relaxed\nsupervisors:\n- {id: s1, address: 10.0.0.101}\n- {id: s2, address: 10.0.0.102}\n"+
		"- {id: s3, address: 10.0.0.103}\n")
	h.ctl("cluster", "init", filepath.Join(h.dir, "inventory.yaml"), "--out", h.operator())
	for _, s := range hallSupervisors {
		h.join("supervisors", s)
		h.start(s)
	}
	h.eventually("a leader makes a token", func() bool { // the first leaders may be short-lived
		out, err := h.try("token", "create", "--uses", strconv.Itoa(nodes))
		token = string(out)
		return err == nil
	})
	return h, token
}
