package process

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"
)

// slurmNode is a node as 'scontrol show node' prints it.
type slurmNode struct {
	name    string
	state   string // as printed: IDLE+DRAIN
	drained bool   // draining or drained: it accepts no new work, whether or not jobs still run on it
	reason  string // without the user and time that Slurm appends; empty if none
}

func (n slurmNode) String() string {
	if n.reason == "" {
		return n.state
	}
	return fmt.Sprintf("%s (%s)", n.state, n.reason)
}

// setBy matches the suffix that Slurm adds to a reason: [root@2026-01-02T03:04:05].
var setBy = regexp.MustCompile(` \[[^\[\]\s]+@[^\[\]\s]+\]$`)

// nextField matches the beginning of the line after a reason.
var nextField = regexp.MustCompile(`^   [A-Za-z]+=`)

// parseNode parses the description of one node. Each line has one or more fields; the reason has its own line, and so
// have the texts that operators write. A duplicate field is rejected, because one of the two may be part of a text.
func parseNode(name, text string) (slurmNode, error) {
	n := slurmNode{name: name}
	bad := func(what string) error {
		return fmt.Errorf("scontrol show node %s: %s: %.200q", name, what, text)
	}
	names, states, reasons, within := 0, 0, 0, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \r\n")
		if within = within && line != "" && !nextField.MatchString(line); within { // continues a reason of several lines
			n.reason += "\n" + line
			continue
		}
		switch field, rest, _ := strings.Cut(strings.TrimPrefix(line, "   "), "="); {
		case field == "NodeName" && !strings.HasPrefix(line, " "):
			names++
			if given, _, _ := strings.Cut(rest, " "); given != name {
				return slurmNode{}, bad("it is of another node")
			}
		case field == "State" && strings.HasPrefix(line, "   "):
			states++
			n.state, _, _ = strings.Cut(rest, " ")
		case field == "Reason" && strings.HasPrefix(line, "   "):
			reasons++
			n.reason, within = setBy.ReplaceAllString(rest, ""), true
		}
	}
	if names != 1 || states != 1 || reasons > 1 || n.state == "" {
		return slurmNode{}, bad("want one NodeName, one State and at most one Reason")
	}
	for flag := range strings.SplitSeq(n.state, "+") {
		switch strings.TrimRight(flag, "*~#!%$@^-") { // suffixes for additional states
		case "DRAIN", "DRAINED", "DRAINING":
			n.drained = true
		}
	}
	return n, nil
}

// slurmMark is a drain reason that we have set.
type slurmMark struct {
	cluster string
	entries []slurmEntry // the responses that want the node drained, in the order in which they came
	text    string
}

type slurmEntry struct {
	response string
	token    uint64 // token of the attempt that set it
}

func (m slurmMark) has(response string) bool {
	for _, e := range m.entries {
		if e.response == response {
			return true
		}
	}
	return false
}

// markTable is the table for the checksum in a mark.
var markTable = crc32.MakeTable(crc32.Castagnoli)

// String returns the reason to set. It contains the CRC-32C of its other parts.
func (m slurmMark) String() string {
	list := make([]string, len(m.entries))
	for i, e := range m.entries {
		list[i] = e.response + "@" + strconv.FormatUint(e.token, 10)
	}
	head, tail := "lofamo:"+m.cluster+"["+strings.Join(list, " "), strings.TrimSpace("] "+m.text)
	return fmt.Sprintf("%s #%08x%s", head, crc32.Checksum([]byte(head+tail), markTable), tail)
}

// parseMark parses a reason and reports whether it is an unchanged mark of this cluster. A similar text, or a mark with
// a change or an addition, is not.
func parseMark(reason, cluster string) (slurmMark, bool) {
	rest, ours := strings.CutPrefix(reason, "lofamo:"+cluster+"[")
	list, text, closed := strings.Cut(rest, "]")
	list, _, proved := strings.Cut(list, " #")
	if !ours || !closed || !proved {
		return slurmMark{}, false
	}
	m := slurmMark{cluster: cluster, text: strings.TrimSpace(text)}
	for e := range strings.SplitSeq(list, " ") {
		id, token, ok := strings.Cut(e, "@")
		n, err := strconv.ParseUint(token, 10, 64)
		if !ok || err != nil || !responseID.MatchString(id) || m.has(id) {
			return slurmMark{}, false
		}
		m.entries = append(m.entries, slurmEntry{id, n})
	}
	if m.String() != reason {
		return slurmMark{}, false
	}
	return m, true
}

// whose describes the owner of a reason that is not an unchanged mark of ours.
func whose(reason, cluster string) string {
	if strings.HasPrefix(reason, "lofamo:"+cluster+"[") {
		return "ours, which somebody has changed since"
	}
	return "another"
}

// slurmText makes a short, printable line of a text. It removes the quotes that scontrol would interpret, including single
// ones at the end.
func slurmText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '"' || r == '\ufffd' {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxSlurmText {
		s = strings.ToValidUTF8(s[:maxSlurmText], "")
	}
	return strings.TrimRight(s, " '")
}
