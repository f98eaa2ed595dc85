package inject

import (
	"bufio"
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// instructions is a range of a program's machine code.
type instructions struct {
	name       string // the function, or file and line
	addr, size uint64
}

// bits returns the number of bits in some ranges.
func bits(ranges []instructions) (n uint64) {
	for _, r := range ranges {
		n += 8 * r.size
	}
	return n
}

// codeBit is one bit of machine code.
type codeBit struct {
	name string
	addr uint64
	bit  int // 0 to 7
}

func (b codeBit) String() string { return fmt.Sprintf("%s, bit %d of %#x", b.name, b.bit, b.addr) }

// bitAt returns the i-th bit of some ranges.
func bitAt(ranges []instructions, i uint64) codeBit {
	for _, r := range ranges {
		if i < 8*r.size {
			return codeBit{r.name, r.addr + i/8, int(i % 8)}
		}
		i -= 8 * r.size
	}
	panic("no such bit")
}

// function returns the machine code of a function.
func function(program, name string) (instructions, error) {
	f, err := elf.Open(program)
	if err != nil {
		return instructions{}, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return instructions{}, fmt.Errorf("symbols of %s: %w", program, err)
	}
	for _, s := range symbols {
		if s.Name == name && elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Size > 0 {
			return instructions{name, s.Value, s.Size}, nil
		}
	}
	return instructions{}, fmt.Errorf("%s has no function %s", program, name)
}

// sourceLines is a set of lines by file.
type sourceLines map[string]map[int]bool

// codeOf returns the machine code of some lines, in the order of its addresses.
func codeOf(program string, run sourceLines) ([]instructions, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := f.DWARF()
	if err != nil {
		return nil, fmt.Errorf("line table of %s: %w", program, err)
	}
	var out []instructions
	for r := data.Reader(); ; {
		unit, err := r.Next()
		if err != nil || unit == nil {
			slices.SortFunc(out, func(a, b instructions) int { return int(int64(a.addr) - int64(b.addr)) })
			return out, err
		}
		if unit.Tag == dwarf.TagCompileUnit {
			if out, err = appendLines(out, data, unit, run); err != nil {
				return nil, err
			}
		}
		r.SkipChildren()
	}
}

// appendLines adds the machine code of some lines of one compilation unit.
func appendLines(out []instructions, data *dwarf.Data, unit *dwarf.Entry, run sourceLines) ([]instructions, error) {
	lines, err := data.LineReader(unit)
	if err != nil || lines == nil {
		return out, err
	}
	var before, e dwarf.LineEntry
	for {
		switch err := lines.Next(&e); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return out, err
		}
		if before.File != nil && e.Address > before.Address && run[before.File.Name][before.Line] {
			out = append(out, instructions{fmt.Sprintf("%s:%d", before.File.Name, before.Line), before.Address, e.Address - before.Address})
		}
		if before = e; e.EndSequence {
			before = dwarf.LineEntry{}
		}
	}
}

// readCoverage reads the lines that ran from the text form of Go's coverage data.
func readCoverage(r io.Reader, run sourceLines) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		file, rest, ok := strings.Cut(lines.Text(), ":")
		if !ok || file == "mode" {
			continue
		}
		var from, to, column, statements, count int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &from, &column, &to, &column, &statements, &count); err != nil {
			return fmt.Errorf("coverage %q: %w", lines.Text(), err)
		}
		if count == 0 {
			continue
		}
		if run[file] == nil {
			run[file] = map[int]bool{}
		}
		for l := from; l <= to; l++ {
			run[file][l] = true
		}
	}
	return lines.Err()
}

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
	return e.GetNode() == string(n.ID) && unloaded(e.GetComponent()) || f.leadsTo(e.GetNode(), e.GetComponent(), n)
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
		f := newFieldOf(t, "2x2x1", counted)
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
	whole, err := readRecord(*recordOut)
	if err != nil {
		t.Fatal(err)
	}
	code := c.recordOf(classes)
	code.Full, whole.Code = true, &code
	if err := whole.write(*recordOut); err != nil {
		t.Fatal(err)
	}
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

// TestCodeIsFoundByNameAndLine looks up code of a small program: a test's own program has no symbols.
func TestCodeIsFoundByNameAndLine(t *testing.T) {
	dir := t.TempDir()
	program, source := filepath.Join(dir, "small"), filepath.Join(dir, "small.go")
	const text = `package main

//go:noinline
func add(a, b int) int {
	return a + b
}

func main() {
	println(add(1, 2))
}
`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-trimpath=false", "-o", program, source)
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", source, err, b)
	}
	f, err := function(program, "main.add")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := function(program, "main.subtract"); err == nil {
		t.Error("a function that does not exist was found")
	}
	lines, err := codeOf(program, sourceLines{source: {5: true}})
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) == 0 {
		t.Fatal("no code of a line")
	}
	for _, l := range lines {
		if l.addr < f.addr || l.addr+l.size > f.addr+f.size {
			t.Errorf("line 5 is at %+v, outside of its function, %+v", l, f)
		}
	}
	if none, err := codeOf(program, sourceLines{source: {7: true}}); err != nil || len(none) > 0 {
		t.Errorf("code of an empty line: %v %v", none, err)
	}
}

func TestBitsOfCode(t *testing.T) {
	ranges := []instructions{{"a", 100, 2}, {"b", 200, 1}}
	if got := bits(ranges); got != 24 {
		t.Errorf("%d bits, want 24", got)
	}
	for i, want := range map[uint64]codeBit{0: {"a", 100, 0}, 15: {"a", 101, 7}, 16: {"b", 200, 0}, 23: {"b", 200, 7}} {
		if got := bitAt(ranges, i); got != want {
			t.Errorf("bit %d: %s, want %s", i, got, want)
		}
	}
}

func TestCoverageGivesLinesThatRan(t *testing.T) {
	run := sourceLines{}
	err := readCoverage(strings.NewReader("mode: set\nexample.org/x/a.go:3.2,5.7 2 1\nexample.org/x/a.go:7.1,8.2 1 0\n"), run)
	if err != nil {
		t.Fatal(err)
	}
	if got := run["example.org/x/a.go"]; len(run) != 1 || len(got) != 3 || !got[3] || !got[4] || !got[5] {
		t.Errorf("lines %v, want 3 to 5", run)
	}
	if err := readCoverage(strings.NewReader("a.go:x\n"), run); err == nil {
		t.Error("a damaged line was accepted")
	}
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
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(maps)) {
		if strings.Contains(l, " r-xp ") {
			if _, err := fmt.Sscanf(l, "%x-", &from); err != nil {
				t.Fatal(err)
			}
			break
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
