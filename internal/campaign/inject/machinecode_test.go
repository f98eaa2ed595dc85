package inject

import (
	"bufio"
	"debug/dwarf"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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

// lineAt returns the file and line of an address in a program.
func lineAt(program string, addr uint64) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := f.DWARF()
	if err != nil {
		return "", fmt.Errorf("line table of %s: %w", program, err)
	}
	unit, err := data.Reader().SeekPC(addr)
	if err != nil {
		return "", fmt.Errorf("line of %#x in %s: %w", addr, program, err)
	}
	lines, err := data.LineReader(unit)
	if err != nil {
		return "", err
	}
	var e dwarf.LineEntry
	if err := lines.SeekPC(addr, &e); err != nil {
		return "", fmt.Errorf("line of %#x in %s: %w", addr, program, err)
	}
	return fmt.Sprintf("%s:%d", e.File.Name, e.Line), nil
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
	if line, err := lineAt(program, lines[0].addr); err != nil || line != source+":5" {
		t.Errorf("the address of line 5 is at %q: %v", line, err)
	}
	if _, err := lineAt(program, 1); err == nil {
		t.Error("an address outside of the program has a line")
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
