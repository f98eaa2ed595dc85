package slurm

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"
)

// node is a node as 'scontrol show node' prints it.
type node struct {
	name    string
	state   string // as printed: IDLE+DRAIN
	drained bool   // it takes no new work for that reason, whether work is left on it or not
	reason  string // without who set it, and when; empty: none
}

func (n node) String() string {
	if n.reason == "" {
		return n.state
	}
	return fmt.Sprintf("%s (%s)", n.state, n.reason)
}

// setBy is what Slurm puts behind a reason: [root@2026-01-02T03:04:05].
var setBy = regexp.MustCompile(` \[[^\[\]\s]+@[^\[\]\s]+\]$`)

// nextField is how the line after a reason of one line begins.
var nextField = regexp.MustCompile(`^   [A-Za-z]+=`)

// parseNode reads the description of one node, one field or more to a line, the reason on a line of its own. Texts that operators write
// stand on lines of their own too; what is there twice is refused, for one of the two may be part of a text.
func parseNode(name, text string) (node, error) {
	n := node{name: name}
	bad := func(what string) error {
		return fmt.Errorf("scontrol show node %s: %s: %.200q", name, what, text)
	}
	names, states, reasons, within := 0, 0, 0, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \r\n")
		if within = within && line != "" && !nextField.MatchString(line); within { // of a reason of more lines
			n.reason += "\n" + line
			continue
		}
		switch field, rest, _ := strings.Cut(strings.TrimPrefix(line, "   "), "="); {
		case field == "NodeName" && !strings.HasPrefix(line, " "):
			names++
			if given, _, _ := strings.Cut(rest, " "); given != name {
				return node{}, bad("it is of another node")
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
		return node{}, bad("want one NodeName, one State and at most one Reason")
	}
	for flag := range strings.SplitSeq(n.state, "+") {
		switch strings.TrimRight(flag, "*~#!%$@^-") { // signs for what goes on beside it
		case "DRAIN", "DRAINED", "DRAINING":
			n.drained = true
		}
	}
	return n, nil
}

// mark is a reason of ours.
type mark struct {
	cluster string
	entries []entry // the responses that want the node drained, in the order in which they came
	text    string
}

type entry struct {
	response string
	token    uint64 // under which it was set
}

func (m mark) has(response string) bool {
	for _, e := range m.entries {
		if e.response == response {
			return true
		}
	}
	return false
}

// castagnoli is of the proof in a mark.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// String is the reason as it is set. It proves itself: the CRC-32C is of all of it but the proof.
func (m mark) String() string {
	list := make([]string, len(m.entries))
	for i, e := range m.entries {
		list[i] = e.response + "@" + strconv.FormatUint(e.token, 10)
	}
	head, tail := "lofamo:"+m.cluster+"["+strings.Join(list, " "), strings.TrimSpace("] "+m.text)
	return fmt.Sprintf("%s #%08x%s", head, crc32.Checksum([]byte(head+tail), castagnoli), tail)
}

// parseMark reads a reason, and says whether it is one of ours, of this cluster, as it was set. One that is almost so, or that
// somebody has changed or written something behind, is not.
func parseMark(reason, cluster string) (mark, bool) {
	rest, ours := strings.CutPrefix(reason, "lofamo:"+cluster+"[")
	list, text, closed := strings.Cut(rest, "]")
	list, _, proved := strings.Cut(list, " #")
	if !ours || !closed || !proved {
		return mark{}, false
	}
	m := mark{cluster: cluster, text: strings.TrimSpace(text)}
	for e := range strings.SplitSeq(list, " ") {
		id, token, ok := strings.Cut(e, "@")
		n, err := strconv.ParseUint(token, 10, 64)
		if !ok || err != nil || !responseID.MatchString(id) || m.has(id) {
			return mark{}, false
		}
		m.entries = append(m.entries, entry{id, n})
	}
	if m.String() != reason {
		return mark{}, false
	}
	return m, true
}

// whose says of a reason that is not ours whose it is.
func whose(reason, cluster string) string {
	if strings.HasPrefix(reason, "lofamo:"+cluster+"[") {
		return "ours, which somebody has changed since"
	}
	return "another"
}

// textOf makes one line of a text, of what can be printed, not too long, and without what scontrol takes for its own quotes, which
// at the end may be single ones.
func textOf(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '"' || r == '\ufffd' {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return strings.TrimRight(s, " '")
}
