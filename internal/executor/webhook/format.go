package webhook

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lofamo/lofamo/internal/notify"
)

// body returns the body of a request in the form of its target.
func (m Message) body(f notify.Format) ([]byte, error) {
	switch f {
	case notify.Generic:
		return json.Marshal(m)
	case notify.Slack:
		return json.Marshal(slackMessage(m.notice()))
	case notify.Teams:
		return json.Marshal(teamsMessage(m.notice()))
	default:
		return nil, fmt.Errorf("format %.20q: no webhook has it", string(f))
	}
}

// notice is a message for people.
type notice struct {
	state string // of the fault, RECOVERED or TEST
	what  string
	facts []string
}

// noticeTime is the format of times for people.
const noticeTime = "2006-01-02 15:04:05 UTC"

// notice returns the message for people.
func (m Message) notice() notice {
	if m.Action == ActionTest {
		return notice{state: "TEST", what: "cluster " + m.Cluster + " can send notifications here"}
	}
	n := notice{state: m.Fault.State, what: m.Target.String() + " in cluster " + m.Cluster}
	if m.Action == ActionUndo {
		n.state = "RECOVERED"
		n.facts = append(n.facts, fmt.Sprintf("It was %s, cause %s, since %s.", m.Fault.State, m.Fault.Cause, m.Fault.Since.Format(noticeTime)))
	} else {
		n.facts = append(n.facts, fmt.Sprintf("Cause %s, since %s.", m.Fault.Cause, m.Fault.Since.Format(noticeTime)))
		if m.Fault.Detail != "" {
			n.facts = append(n.facts, m.Fault.Detail)
		}
	}
	if m.Incident != "" {
		n.facts = append(n.facts, "lofamoctl get incidents "+m.Incident)
	}
	return n
}

// String names the target for people.
func (t MessageTarget) String() string {
	switch {
	case t.Group != "" && t.MemberCount > 0:
		return fmt.Sprintf("%s (%d nodes)", t.Group, t.MemberCount)
	case t.Group != "":
		return t.Group
	case t.Component == "node":
		return "node " + t.Node
	default:
		return t.Component + " of node " + t.Node
	}
}

// slackText is a message of Slack's incoming webhooks.
type slackText struct {
	Text string `json:"text"`
}

// slackEscape keeps texts from becoming links and mentions.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

func slackMessage(n notice) slackText {
	lines := []string{"*" + n.state + "* " + slackEscape.Replace(n.what)}
	for _, f := range n.facts {
		lines = append(lines, slackEscape.Replace(f))
	}
	return slackText{strings.Join(lines, "\n")}
}

// A message for a workflow of Teams: an adaptive card. Its texts are runs, in which Teams interprets no markup.
type (
	teamsCard struct {
		Type        string            `json:"type"`
		Attachments []teamsAttachment `json:"attachments"`
	}
	teamsAttachment struct {
		ContentType string       `json:"contentType"`
		Content     teamsContent `json:"content"`
	}
	teamsContent struct {
		Schema  string       `json:"$schema"`
		Type    string       `json:"type"`
		Version string       `json:"version"`
		Body    []teamsBlock `json:"body"`
	}
	teamsBlock struct {
		Type    string     `json:"type"`
		Inlines []teamsRun `json:"inlines"`
	}
	teamsRun struct {
		Type   string `json:"type"`
		Text   string `json:"text"`
		Weight string `json:"weight,omitempty"`
		Color  string `json:"color,omitempty"`
	}
)

// teamsColors are how cards draw states.
var teamsColors = map[string]string{"FAILED": "attention", "SICK": "warning", "UNKNOWN": "warning", "RECOVERED": "good"}

func teamsMessage(n notice) teamsCard {
	block := func(runs ...teamsRun) teamsBlock { return teamsBlock{"RichTextBlock", runs} }
	body := []teamsBlock{block(teamsRun{"TextRun", n.state, "bolder", teamsColors[n.state]}, teamsRun{Type: "TextRun", Text: " " + n.what})}
	for _, f := range n.facts {
		body = append(body, block(teamsRun{Type: "TextRun", Text: f}))
	}
	return teamsCard{"message", []teamsAttachment{{"application/vnd.microsoft.card.adaptive",
		teamsContent{"http://adaptivecards.io/schemas/adaptive-card.json", "AdaptiveCard", "1.4", body}}}}
}
