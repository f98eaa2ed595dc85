package inventory

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// SwitchLabel is the label for a node's switch, or its block.
const SwitchLabel = "switch"

// Switches are the switches of nodes by their names in Slurm, or their blocks.
type Switches map[string]string

// Bounds of a topology.conf.
const (
	maxSlurmFile  = 8 << 20 // bytes
	maxSlurmNames = 1 << 17 // nodes and switches that all lists name
	maxSlurmBad   = 20      // lines that an error names
)

// LoadSwitches reads Slurm's topology.conf.
func LoadSwitches(path string) (Switches, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("topology.conf: %w", err)
	}
	defer func() { _ = f.Close() }()
	s, err := ReadSwitches(f)
	if err != nil {
		return nil, fmt.Errorf("topology.conf %s: %w", path, err)
	}
	return s, nil
}

// ReadSwitches reads the text of Slurm's topology.conf, for its tree plugin (SwitchName) or its block plugin (BlockName). It
// returns the leaf switch or the block of each node. The error names each bad line, up to a bound.
func ReadSwitches(r io.Reader) (Switches, error) { return readSwitches(r, maxSlurmNames) }

// readSwitches is ReadSwitches for a number of names.
func readSwitches(r io.Reader, most int) (Switches, error) {
	limited := &io.LimitedReader{R: r, N: maxSlurmFile + 1}
	t := slurmTopology{nodes: Switches{}, lineOf: map[string]int{}, switches: map[string]int{}, children: map[string]int{},
		most: most, left: most}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxSlurmFile+2)
	var errs []error
	var text strings.Builder // of a line with its continuations
	line, first := 0, 1
	for lines.Scan() {
		line++
		part, _, _ := strings.Cut(lines.Text(), "#")
		part, continued := strings.CutSuffix(strings.TrimRight(part, " \t\r"), `\`)
		_, _ = text.WriteString(part) // never fails
		if continued {
			continue
		}
		if err := t.line(first, text.String()); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", first, err))
		}
		text.Reset()
		if first = line + 1; len(errs) == maxSlurmBad {
			return nil, errors.Join(append(errs, errors.New("the lines after these were not read"))...)
		}
	}
	switch err := lines.Err(); {
	case limited.N == 0:
		return nil, fmt.Errorf("given more than %d bytes: want at most that", maxSlurmFile)
	case err != nil:
		return nil, err
	case text.Len() > 0:
		errs = append(errs, fmt.Errorf(`line %d: want another line after "\"`, line))
	}
	for _, name := range t.wanted {
		if _, known := t.switches[name]; !known && len(errs) < maxSlurmBad {
			errs = append(errs, fmt.Errorf("line %d: Switches: given %s: want the SwitchName of another line", t.children[name], name))
		}
	}
	if len(errs) == 0 && len(t.nodes) == 0 {
		errs = append(errs, errors.New("no node: want lines as in SwitchName=s1 Nodes=n[01-16,20], or BlockName=b1 Nodes=n[01-16,20]"))
	}
	return t.nodes, errors.Join(errs...)
}

// slurmTopology collects what the lines of topology.conf say.
type slurmTopology struct {
	kind     string         // of its lines: switchname or blockname
	nodes    Switches       // by node
	lineOf   map[string]int // by node
	switches map[string]int // line by name of the switch or block
	children map[string]int // line by name of a switch below another one
	wanted   []string       // the latter names, in order
	most     int            // names that all lists may have
	left     int            // of these
}

// line reads one line, whose continuations are joined.
func (t *slurmTopology) line(number int, text string) error {
	fields, err := slurmFields(text)
	if err != nil || len(fields) == 0 {
		return err
	}
	if _, sizes := fields["blocksizes"]; sizes && len(fields) == 1 {
		return nil
	}
	kind, group := "switchname", fields["switchname"]
	block, isBlock := fields["blockname"]
	if isBlock {
		kind, group = "blockname", block
	}
	_, isSwitch := fields["switchname"]
	if isBlock == isSwitch {
		return errors.New("want either SwitchName or BlockName")
	}
	shown := map[string]string{"switchname": "SwitchName", "blockname": "BlockName"}[kind] + "=" + group
	if err := fault.CheckLabelValue(group); err != nil || group == "" {
		return fmt.Errorf("%.80s: want a name of 1 to 63 letters, digits, '-', '_' and '.', which becomes the label %s", shown, SwitchLabel)
	}
	if t.kind != "" && t.kind != kind {
		return fmt.Errorf("%s: want only switches or only blocks in one file", shown)
	}
	t.kind = kind
	if other, known := t.switches[group]; known {
		return fmt.Errorf("%s: want each name once: line %d has it", shown, other)
	}
	t.switches[group] = number
	nodes, hasNodes := fields["nodes"]
	below, hasBelow := fields["switches"]
	switch {
	case isBlock && hasBelow:
		return fmt.Errorf("%s: given Switches: want Nodes for a block", shown)
	case hasNodes == hasBelow:
		return fmt.Errorf("%s: want either Nodes or Switches", shown)
	case hasBelow:
		names, err := t.list("Switches", below)
		if err != nil {
			return fmt.Errorf("%s: %w", shown, err)
		}
		for _, name := range names {
			if _, known := t.children[name]; !known {
				t.children[name] = number
				t.wanted = append(t.wanted, name)
			}
		}
		return nil
	}
	names, err := t.list("Nodes", nodes)
	if err != nil {
		return fmt.Errorf("%s: %w", shown, err)
	}
	for _, name := range names {
		if other, known := t.nodes[name]; known {
			return fmt.Errorf("%s: Nodes: given %s: want each node once: line %d has it below %s", shown, name, t.lineOf[name], other)
		}
		t.nodes[name], t.lineOf[name] = group, number
	}
	return nil
}

// slurmFields reads the fields of a line. Their names are in lower case, since Slurm ignores it.
func slurmFields(text string) (map[string]string, error) {
	out := map[string]string{}
	words := strings.Fields(strings.ReplaceAll(text, "=", " = ")) // spaces around it are allowed
	for i := 0; i < len(words); i += 3 {
		if i+2 >= len(words) || words[i] == "=" || words[i+1] != "=" || words[i+2] == "=" {
			return nil, fmt.Errorf("given %.80q: want KEY=VALUE", strings.Join(words[i:min(i+3, len(words))], " "))
		}
		key, value := words[i], words[i+2]
		value = strings.TrimSuffix(strings.TrimPrefix(value, `"`), `"`)
		lower := strings.ToLower(key)
		switch lower {
		case "switchname", "switches", "nodes", "blockname", "blocksizes", "linkspeed":
		default:
			return nil, fmt.Errorf("given %.80q: want SwitchName, Switches, Nodes, LinkSpeed, BlockName or BlockSizes", key)
		}
		if _, twice := out[lower]; twice {
			return nil, fmt.Errorf("%s: want it once", key)
		}
		if value == "" {
			return nil, fmt.Errorf("%s: given nothing: want a value", key)
		}
		out[lower] = value
	}
	return out, nil
}

// list reads a list of hosts, such as n[01-16,20],m1, and returns the names in their order.
func (t *slurmTopology) list(key, text string) ([]string, error) {
	var out []string
	for rest := text; ; {
		end := endOfHost(rest)
		names, err := t.host(rest[:end])
		if err != nil {
			return nil, fmt.Errorf("%s: given %.80q: %w", key, rest[:end], err)
		}
		out = append(out, names...)
		if end == len(rest) {
			return out, nil
		}
		rest = rest[end+1:]
	}
}

// endOfHost returns the index of the first comma outside of brackets.
func endOfHost(s string) int {
	within := false
	for i, c := range s {
		switch {
		case c == '[':
			within = true
		case c == ']':
			within = false
		case c == ',' && !within:
			return i
		}
	}
	return len(s)
}

// host returns the names of one element of a list, whose brackets hold ranges of numbers.
func (t *slurmTopology) host(text string) ([]string, error) {
	names := []string{""}
	for text != "" {
		before, after, found := strings.Cut(text, "[")
		if len(names[0])+len(before) > maxSlurmName {
			return nil, errSlurmName
		}
		for i := range names {
			names[i] += before
		}
		if !found {
			if strings.Contains(before, "]") {
				return nil, errors.New(`want "[" before "]"`)
			}
			break
		}
		ranges, rest, closed := strings.Cut(after, "]")
		if !closed || strings.Contains(before, "]") {
			return nil, errors.New(`want ranges between "[" and "]", as in n[01-16,20]`)
		}
		numbers, err := t.numbers(ranges)
		if err != nil {
			return nil, err
		}
		if len(names)*len(numbers) > t.left {
			return nil, t.tooMany()
		}
		grown := make([]string, 0, len(names)*len(numbers))
		for _, name := range names {
			for _, n := range numbers {
				grown = append(grown, name+n)
			}
		}
		names, text = grown, rest
	}
	if t.left -= len(names); t.left < 0 {
		return nil, t.tooMany()
	}
	for _, name := range names {
		if !fault.IsName(name) {
			return nil, fmt.Errorf("the name %q: %w", name, errSlurmName)
		}
	}
	return names, nil
}

// maxSlurmName bounds a name, with more digits than fault.IsName permits.
const maxSlurmName = 64

var errSlurmName = errors.New("want names of 1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit")

func (t *slurmTopology) tooMany() error {
	return fmt.Errorf("want at most %d names in the whole file", t.most)
}

// maxDigits bounds the numbers of ranges.
const maxDigits = 9

// numbers reads ranges such as 01-16,20. All numbers of a range have as many digits as its first one, with zeros in front.
func (t *slurmTopology) numbers(text string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, ok := slurmNumber(first)
		to, also := slurmNumber(last)
		if !ok || !also || to < from || first[0] == '0' && len(first) > len(last) || last[0] == '0' && len(last) > len(first) {
			return nil, fmt.Errorf("the range %.80q: want a number of 1 to %d digits, or two with the smaller one first, as in 01-16", part,
				maxDigits)
		}
		if to-from >= t.left-len(out) {
			return nil, t.tooMany()
		}
		for n := from; n <= to; n++ {
			out = append(out, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return out, nil
}

func slurmNumber(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil && len(s) <= maxDigits //nolint:gosec // of 31 bits
}

// label gives each node that the switches name, and that has no label "switch" yet, that label. It returns how many nodes got
// it, and the names of those that have neither.
func (s Switches) label(inv *Inventory) (labelled int, unknown []string) {
	for _, list := range [][]Node{inv.Nodes, inv.Spares} {
		for i := range list {
			n := &list[i]
			if n.Labels[SwitchLabel] != "" {
				continue
			}
			name := string(n.ID)
			if at, err := grid.ParseCoord(n.Coord); err == nil {
				name = string(n.name(at))
			}
			of, known := s[name]
			if !known {
				unknown = append(unknown, name)
				continue
			}
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			n.Labels[SwitchLabel] = of
			labelled++
		}
	}
	return labelled, unknown
}
