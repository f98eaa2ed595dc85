package inject

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/internal/testing/machine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// sendRoutine is our counterpart of the paper's send_chunk: the DNP half passes it with every frame, and it does
// nothing but hand the frame to the network.
const sendRoutine = "github.com/lofamo/lofamo/pkg/torus/udplink.sendTo"

// Classes of flips in code.
const (
	codeSend   = "code: the routine that sends frames"
	codeActive = "code: the lines that a half runs"
)

// watchOn is the observation time of a flip that the application has noticed and we have not.
const watchOn = 10 * time.Second

// flipCode flips one bit of the machine code of a running process. The kernel gives the process a page of its own, so
// neither the file nor another process changes, and a restart undoes the flip.
func flipCode(pid int, b codeBit) error {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var code [1]byte
	if _, err := f.ReadAt(code[:], int64(b.addr)); err != nil {
		return fmt.Errorf("read %s: %w", b, err)
	}
	code[0] ^= 1 << b.bit
	if _, err := f.WriteAt(code[:], int64(b.addr)); err != nil {
		return fmt.Errorf("write %s: %w", b, err)
	}
	return nil
}

// tryCode flips one bit of a half's code, observes it, and restarts the half.
func (f *field) tryCode(n cluster.NodeInfo, w who, b codeBit) (sample, error) {
	return f.tryFlip(n, w, func(pid int) (string, error) {
		return fmt.Sprintf("%s half of %s: %s", w, n.ID, b), flipCode(pid, b)
	}, false)
}

// judgeFlip records both observers' findings on a flip. The prober is the application: it asks for the node's
// status, and counts the node's reports, which the load causes all the time. The daemon, the half itself, and the
// neighbours and supervisors are our detection.
func (f *field) judgeFlip(n cluster.NodeInfo, mark int, at int64, reports int, s *sample) {
	for _, e := range f.Since(mark) {
		if s.ours == "" && f.detects(e, n) {
			s.foundBy(e, n, at)
		}
	}
	v := f.noticed(n, mark, at, cluster.Monotonic())
	s.prober = v.certain() || reports == 0
	if said := v.String(); said != "" {
		s.what += ": " + said
	}
	if reports == 0 {
		s.what += ": no report arrived"
	}
	if s.prober && s.category == catNoImpact {
		if s.category = catControl; reports == 0 {
			s.category = catSend
		}
	}
	if s.ours == byPeer && !s.prober { // the application sends no frames of its own, and would have missed them
		s.harmed, s.category = true, catSend
	}
}

// foundBy records a change of the map that names a fault of the node.
func (s *sample) foundBy(e lab.Seen, n cluster.NodeInfo, at int64) {
	s.ours, s.detect = byPeer, time.Duration(e.At-at)
	if e.GetNode() == string(n.ID) && ownFault(e) {
		s.ours = bySelfTest
	}
}

// detects reports whether a change of the map names a part of the node, or a neighbour's link to it, as not NORMAL. The
// load changes the temperature.
func (f *field) detects(e lab.Seen, n cluster.NodeInfo) bool {
	if e.GetTo() == lofamov1.State_NORMAL {
		return false
	}
	return e.GetNode() == string(n.ID) && f.unloaded(e.GetComponent()) || f.leadsTo(e.GetNode(), e.GetComponent(), n)
}

// leadsTo reports whether a component of a node is its link to n.
func (f *field) leadsTo(node, component string, n cluster.NodeInfo) bool {
	name, ok := strings.CutPrefix(component, "link/")
	d, err := grid.ParseDirection(name)
	if !ok || err != nil {
		return false
	}
	for _, m := range f.nodes {
		if string(m.ID) != node {
			continue
		}
		at, err := grid.ParseCoord(m.Coord)
		if err != nil {
			return false
		}
		to, ok := f.dims.Neighbour(at, d)
		return ok && to.String() == n.Coord
	}
	return false
}

// neighboursWell waits until the neighbours' links to a node are NORMAL after its last restart.
func (f *field) neighboursWell(n cluster.NodeInfo) error {
	for _, m := range f.nodes {
		if err := f.wellAgain(m, func(component string) bool { return f.leadsTo(string(m.ID), component, n) }); err != nil {
			return err
		}
	}
	return nil
}

// linesRun returns the lines that the halves of a cluster run under the load of a campaign, in a program that is built
// with counters for them.
func linesRun(t *testing.T) sourceLines {
	t.Helper()
	dir, err := os.MkdirTemp("", "lofamo-inject-cover-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	counted := filepath.Join(dir, "bin")
	build := exec.Command("go", "build", "-cover", "-coverpkg=github.com/lofamo/lofamo/...", "-trimpath", "-tags", "lofamo_failpoint",
		"-o", counted+"/", "../../../cmd/lofamo-agent")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build an agent that counts its lines: %v\n%s", err, b)
	}
	if err := os.Symlink(filepath.Join(programs(t), "lofamo-supervisor"), filepath.Join(counted, "lofamo-supervisor")); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCOVERDIR", data)
	halves := map[string]bool{} // process numbers
	t.Run("count", func(t *testing.T) {
		f := newFieldOf(t, "2x2x1", counted, usualLoad)
		time.Sleep(10 * time.Second) // the load runs meanwhile
		for _, n := range f.nodes {
			for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
				r, err := f.running(n, h)
				if err != nil {
					t.Fatal(err)
				}
				halves[strconv.Itoa(r.PID)] = true
			}
		}
	})
	counters, err := filepath.Glob(filepath.Join(data, "covcounters.*"))
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for _, c := range counters { // covcounters.HASH.PID.TIME
		if part := strings.Split(filepath.Base(c), "."); len(part) == 4 && halves[part[2]] {
			kept++
		} else if err := os.Remove(c); err != nil {
			t.Fatal(err)
		}
	}
	if kept != len(halves) {
		t.Fatalf("%d of %d halves have left their counters", kept, len(halves))
	}
	text := filepath.Join(dir, "coverage")
	if b, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+data, "-o="+text).CombinedOutput(); err != nil {
		t.Fatalf("read counters: %v\n%s", err, b)
	}
	f, err := os.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	run := sourceLines{}
	if err := readCoverage(f, run); err != nil {
		t.Fatal(err)
	}
	return run
}

// codeFlip is one flip to make.
type codeFlip struct {
	class *class
	who   who
	bit   codeBit
}

// TestCode flips bits in the code of running halves: all bits of the routine that sends frames, and random bits of the
// lines that halves run. A restart must heal every flip, and no report may be lost or doubled.
func TestCode(t *testing.T) {
	agent := filepath.Join(programs(t), "lofamo-agent")
	send, err := function(agent, sendRoutine)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(*seed, 6))
	all := []instructions{send}
	order := r.Perm(int(bits(all)))
	clusters, random := 1, *codeFlips
	if random > 0 {
		clusters = 3
	} else {
		order = order[:6]
	}
	sent, active := newClass(codeSend, *seed), newClass(codeActive, *seed)
	var flips []codeFlip
	for _, i := range order {
		flips = append(flips, codeFlip{sent, dnp, bitAt(all, uint64(i))})
	}
	if random > 0 {
		lines, err := codeOf(agent, linesRun(t))
		if err != nil {
			t.Fatal(err)
		}
		active.notes = append(active.notes, fmt.Sprintf("the halves run %d bytes of machine code of this project's packages", bits(lines)/8))
		for range random {
			flips = append(flips, codeFlip{active, []who{host, dnp}[r.IntN(2)], bitAt(lines, r.Uint64N(bits(lines)))})
		}
	}
	r.Shuffle(len(flips), func(i, j int) { flips[i], flips[j] = flips[j], flips[i] })
	c := conditions{began: time.Now(), load: machine.LoadAverages()}
	flipAll(t, clusters, flips)
	classes := []*class{sent}
	if random > 0 {
		classes = append(classes, active)
	}
	for _, k := range classes {
		k.apart, k.took = true, time.Since(c.began)
		report(t, k)
		t.Logf("%s: %d samples: %v by %s; effective %d, covered %d, prober %d", k.name, k.n, k.outcomes, byWhom(k.by), k.effective,
			k.covered, k.proberOf)
	}
	if c.failed = t.Failed(); random == 0 || *recordOut == "" {
		return
	}
	code := c.recordOf(classes)
	code.Full = true
	amend(t, *recordOut, func(whole *record) { whole.Code = &code })
}

// flipAll makes flips on clusters under load, on two nodes of each at a time that are not neighbours, and accounts for
// every report.
func flipAll(t *testing.T, clusters int, flips []codeFlip) {
	var mu sync.Mutex
	take := func() (codeFlip, bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(flips) == 0 {
			return codeFlip{}, false
		}
		f := flips[0]
		flips = flips[1:]
		return f, true
	}
	var fields []*field
	for range clusters {
		fields = append(fields, newField(t, "2x2x1"))
	}
	var all sync.WaitGroup
	for _, f := range fields {
		for _, n := range []cluster.NodeInfo{f.nodes[0], f.nodes[3]} { // (0,0) and (1,1)
			all.Go(func() {
				for x, more := take(); more; x, more = take() {
					s, err := f.tryCode(n, x.who, x.bit)
					mu.Lock()
					if err != nil {
						t.Error(err)
						s.applied = false
					}
					x.class.add(s)
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	accounts(t, fields)
}

// TestFlipOfCodeChangesOneProcess flips a bit in the code of a process and back. Its program stays as it is.
func TestFlipOfCodeChangesOneProcess(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := filepath.EvalSymlinks(sleep)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var from uint64
	// Start may return before the kernel has mapped the program.
	for end := time.Now().Add(time.Minute); from == 0; time.Sleep(time.Millisecond) {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(maps)) {
			if from == 0 && strings.Contains(l, " r-xp ") && strings.HasSuffix(l, " "+program+"\n") {
				if _, err := fmt.Sscanf(l, "%x-", &from); err != nil {
					t.Fatal(err)
				}
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not mapped:\n%s", program, maps)
		}
	}
	read := func() byte {
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		var b [1]byte
		if _, err := mem.ReadAt(b[:], int64(from)); err != nil {
			t.Fatal(err)
		}
		return b[0]
	}
	was, b := read(), codeBit{"sleep", from, 3}
	if err := flipCode(cmd.Process.Pid, b); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != was^8 {
		t.Errorf("the byte is %#x, want %#x", got, was^8)
	}
	if err := flipCode(cmd.Process.Pid, codeBit{"nowhere", 1, 0}); err == nil {
		t.Error("a flip at an address without code succeeded")
	}
	after, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file, after) {
		t.Error("the flip changed the program's file")
	}
}
