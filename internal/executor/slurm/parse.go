package slurm

import (
	"fmt"
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

// parseNode reads the description of one node, one field or more to a line, the reason on a line of its own. Texts that operators write
// stand on lines of their own too; what is there twice is refused, for one of the two may be part of a text.
func parseNode(name, text string) (node, error) {
	n := node{name: name}
	bad := func(what string) error {
		return fmt.Errorf("scontrol show node %s: %s: %.200q", name, what, text)
	}
	names, states, reasons := 0, 0, 0
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \r\n")
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
			n.reason = setBy.ReplaceAllString(rest, "")
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

// String is the reason as it is set.
func (m mark) String() string {
	list := make([]string, len(m.entries))
	for i, e := range m.entries {
		list[i] = e.response + "@" + strconv.FormatUint(e.token, 10)
	}
	return strings.TrimSpace("lofamo:" + m.cluster + "[" + strings.Join(list, " ") + "] " + m.text)
}

// parseMark reads a reason, and says whether it is one of ours, of this cluster. One that is almost so is not.
func parseMark(reason, cluster string) (mark, bool) {
	rest, ours := strings.CutPrefix(reason, "lofamo:"+cluster+"[")
	list, text, closed := strings.Cut(rest, "]")
	if !ours || !closed || (text != "" && text[0] != ' ') {
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
	return m, true
}

// textOf makes one line of a text, of what can be printed, not too long, and without what scontrol takes for its own quotes.
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
	return strings.TrimSpace(s)
}
