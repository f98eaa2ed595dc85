package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// name matches the valid names of policies and steps, which are those of Kubernetes objects.
var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

const nameWanted = "1 to 63 of a-z, 0-9, '-' and '.', the first and last a letter or digit"

// parse parses one document. It returns the name, if readable, for use in errors.
func parse(b []byte, c *compiler) (*Document, string, []error) {
	v, js, err := tree(b)
	if err != nil {
		return nil, "", []error{err}
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, "", []error{fmt.Errorf("given %s: want a mapping with apiVersion, kind, metadata and spec", show(v))}
	}
	r := &reader{}
	top := r.object("", m)
	top.oneOf("apiVersion", "", APIVersion)
	top.oneOf("kind", "", DocKind)
	d := &Document{JSON: js}
	r.metadata(d, top)
	spec, _ := top.get("spec")
	if _, given := m["spec"]; !given {
		r.bad("spec", nil, "a mapping")
	} else if p := r.spec(d, spec, c); p != nil {
		d.Policy = p
		p.Name, p.Digest = d.Name, digest(spec)
	}
	top.done()
	if len(r.errs) > 0 {
		return nil, d.Name, r.errs
	}
	return d, d.Name, nil
}

// digest returns a digest of a spec's content, independent of its layout.
func digest(spec any) string {
	b, err := json.Marshal(spec)
	if err != nil {
		return "" // unreachable: it came from JSON, so it can be encoded
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

func (r *reader) metadata(d *Document, top *object) {
	v, _ := top.get("metadata")
	if _, given := top.m["metadata"]; !given {
		r.bad("metadata", nil, "a mapping with a name")
		return
	}
	o := r.object("metadata", v)
	d.Name = o.text("name", true, 63)
	if d.Name != "" && !name.MatchString(d.Name) {
		r.bad("metadata.name", d.Name, nameWanted)
	}
	d.Labels = o.texts("labels", func(k, v string) error { return errors.Join(fault.CheckLabelKey(k), fault.CheckLabelValue(v)) })
	d.Annotations = o.texts("annotations", func(k, _ string) error { return fault.CheckLabelKey(k) })
	o.done()
}

func (r *reader) spec(d *Document, v any, c *compiler) *response.Policy {
	o := r.object("spec", v)
	p := &response.Policy{Mode: response.ObserveOnly}
	d.Description = o.text("description", false, maxDescription)
	if o.oneOf("mode", "observe-only", "observe-only", "enforce") == "enforce" {
		p.Mode = response.Enforce
	}
	p.Groups = o.oneOf("target", "Node", "Node", "Group") == "Group"
	d.Match = o.text("match", true, MaxMatch)
	p.Outside = r.outside(o, p.Groups)
	p.Guards = r.guards(o)
	for i, s := range o.list("steps", 1, MaxSteps) {
		p.Steps = append(p.Steps, r.step(fmt.Sprintf("spec.steps[%d]", i), s, p.Steps, p.Groups))
	}
	p.Undo = r.undo(o)
	o.done()
	if d.Match == "" || len(d.Match) > MaxMatch {
		return p
	}
	m, errs := c.compile(d.Match, p.Groups)
	for _, err := range errs {
		r.errs = append(r.errs, fmt.Errorf("spec.match: %w", err))
	}
	p.Match, p.Incidents = m, m != nil && m.incidents
	r.reachable(p, m)
	return p
}

func (r *reader) guards(spec *object) response.Guards {
	v, ok := spec.get("guards")
	if !ok {
		return response.Guards{}
	}
	o := r.object("spec.guards", v)
	g := response.Guards{
		Approvals: o.integer("approvals", 0, 0, response.MaxApprovals), MaxNodes: o.integer("maxNodes", 0, 1, maxNodes),
		Cooldown: o.duration("cooldown", 0, 0), MaxEvidenceAge: o.duration("maxEvidenceAge", 0, time.Second),
	}
	o.done()
	return g
}

// conditionName matches the types of conditions of other programs.
var conditionName = regexp.MustCompile(labelKeyForm)

// outside parses the required conditions of other programs.
func (r *reader) outside(spec *object, groups bool) []response.Outside {
	if _, given := spec.m["outside"]; !given {
		return nil
	}
	var out []response.Outside
	for i, v := range spec.list("outside", 1, response.MaxOutside) {
		o := r.object(fmt.Sprintf("spec.outside[%d]", i), v)
		w := response.Outside{Condition: o.text("condition", true, maxText), Status: o.oneOf("status", "True", "True", "False", "Unknown"),
			For: o.duration("for", 0, 0)}
		own := strings.HasPrefix(w.Condition, "lofamo.io/") && !slices.Contains(response.ControllerConditions(), w.Condition)
		if w.Condition != "" && (!conditionName.MatchString(w.Condition) || own) {
			r.bad(o.at("condition"), w.Condition, "the type of another program's condition, such as KernelDeadlock or example.org/Healthy, or "+
				strings.Join(response.ControllerConditions(), ", "))
		}
		o.done()
		out = append(out, w)
	}
	if groups {
		r.bad("spec.outside", shown("conditions"), "none with target: Group, because conditions describe one node")
	}
	return out
}

func (r *reader) undo(spec *object) response.Undo {
	v, ok := spec.get("undo")
	if !ok {
		return response.Undo{}
	}
	o := r.object("spec.undo", v)
	u := response.Undo{OnRecovery: o.boolean("onRecovery", false), After: o.duration("after", 5*time.Minute, 0)}
	if _, given := o.m["after"]; given && !u.OnRecovery {
		r.bad("spec.undo.after", o.m["after"], "onRecovery: true as well, because otherwise nothing is undone")
	}
	o.done()
	return u
}

// step parses a step; before are the previous steps.
func (r *reader) step(path string, v any, before []response.Step, groups bool) response.Step {
	o := r.object(path, v)
	s := response.Step{Name: o.text("name", true, 63), OnFailure: response.Stop}
	if s.Name != "" && !name.MatchString(s.Name) {
		r.bad(path+".name", s.Name, nameWanted)
	}
	if slices.ContainsFunc(before, func(b response.Step) bool { return b.Name == s.Name && s.Name != "" }) {
		r.bad(path+".name", s.Name, "a name that no other step has")
	}
	var kinds []string
	for _, k := range response.Kinds() {
		if !groups || k.Traits().Groups {
			kinds = append(kinds, string(k))
		}
	}
	s.Kind = response.Kind(o.oneOf("executor", "", kinds...))
	s.Timeout = o.duration("timeout", defaultTimeout(s.Kind), time.Second)
	s.Retries = o.integer("retries", 0, 0, maxRetries)
	s.Wait = o.duration("wait", 0, 0)
	if o.oneOf("onFailure", "stop", "stop", "next") == "next" {
		s.OnFailure = response.Next
	}
	if s.Kind.Traits().Waits && s.OnFailure == response.Next {
		r.bad(path+".onFailure", "next", fmt.Sprintf("stop with %s: the steps after it need a node that is down", s.Kind))
	}
	params, _ := o.get("parameters")
	if s.Kind.Valid() {
		s.Parameters = r.parameters(path+".parameters", s.Kind, params)
	}
	o.done()
	return s
}

// defaultTimeout returns the timeout of a step that states none. A node that fences itself takes contactWithin, its device's timeout and
// a margin.
func defaultTimeout(k response.Kind) time.Duration {
	if k.Traits().Waits {
		return 15 * time.Minute
	}
	return 30 * time.Second
}

// reachable reports rules that could never take effect.
func (r *reader) reachable(p *response.Policy, m *matcher) {
	if n := len(p.Steps); n > 0 {
		last, path := p.Steps[n-1], fmt.Sprintf("spec.steps[%d]", n-1)
		if last.Wait > 0 {
			r.bad(path+".wait", last.Wait.String(), "none at the last step: nothing comes after it")
		}
		if last.Kind.Traits().Waits {
			r.bad(path+".executor", string(last.Kind), fmt.Sprintf("another one at the last step: %s only delays the steps after it", last.Kind))
		}
		if last.OnFailure == response.Next {
			r.bad(path+".onFailure", "next", "stop at the last step: nothing comes after it")
		}
	}
	has := func(f func(response.Traits) bool) bool {
		return slices.ContainsFunc(p.Steps, func(s response.Step) bool { return f(s.Kind.Traits()) })
	}
	if p.Undo.OnRecovery && !has(func(t response.Traits) bool { return t.Undoable }) {
		r.bad("spec.undo.onRecovery", true, "false: no step can be undone")
	}
	if !p.Undo.OnRecovery && slices.ContainsFunc(p.Steps, func(s response.Step) bool { return s.Kind == response.KubernetesRemediate }) {
		r.bad("spec.undo.onRecovery", false, "true with kubernetes.remediate: the remediation must end when the fault is gone")
	}
	acts := has(func(t response.Traits) bool { return t.Class > response.Notify })
	if !acts {
		for _, g := range []struct {
			key   string
			given bool
		}{{"approvals", p.Guards.Approvals > 0}, {"maxNodes", p.Guards.MaxNodes > 0}} {
			if g.given {
				r.bad("spec.guards."+g.key, shown("a limit"), "none: the steps only notify")
			}
		}
	}
	if m == nil {
		return
	}
	for i, s := range p.Steps {
		if s.Kind != response.NodeMaskChannel {
			continue
		}
		if c, other := m.beyondLinks(); other {
			r.bad(fmt.Sprintf("spec.steps[%d].executor", i), string(s.Kind),
				fmt.Sprintf("a match that is for links only; this one may be for %s", c))
		}
	}
}

// parameters parses the parameters of a kind, as strings.
func (r *reader) parameters(path string, k response.Kind, v any) map[string]string {
	o := r.object(path, v)
	out := map[string]string{}
	for _, p := range parametersOf[k] {
		v, ok := o.get(p.name)
		if !ok {
			if _, given := o.m[p.name]; p.required && !given {
				r.bad(o.at(p.name), nil, p.want)
			}
			continue
		}
		s, good := p.read(v)
		if !good {
			r.bad(o.at(p.name), v, p.want)
			continue
		}
		out[p.name] = s
	}
	o.done()
	return out
}

// parameter is a parameter of an executor.
type parameter struct {
	name     string
	required bool
	want     string
	read     func(v any) (string, bool)
	of       string // its type in a schema
	cel      string // the check of read in CEL, where {v} stands for the value; "": the type suffices
}

// parametersOf lists the parameters of every kind that has any.
var parametersOf = map[response.Kind][]parameter{
	response.KubernetesCondition: {camel("type", true), camel("reason", false)},
	response.KubernetesEvent:     {camel("reason", true)},
	response.KubernetesLabel:     {labelKey("key"), labelValue("value")},
	response.KubernetesTaint:     {labelKey("key"), labelValue("value"), choice("effect", "NoSchedule", "PreferNoSchedule")},
	response.KubernetesEvict:     {labelKey("key"), labelValue("value")},
	response.KubernetesDrain:     {span("gracePeriod", time.Hour), flag("force"), flag("deleteEmptyDirData")},
	response.KubernetesRemediate: {template("apiVersion", `^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/v[a-z0-9]{1,62}$`,
		"group/version, such as self-node-remediation.medik8s.io/v1alpha1"),
		template("kind", `^[A-Z][A-Za-z0-9]{0,53}Template$`, "the kind of a template, such as SelfNodeRemediationTemplate"),
		template("namespace", `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`, "the template's namespace"),
		template("name", `^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`, "the template's name")},
	response.SlurmDrain:         {words("reason", true)},
	response.WebhookNotify:      {called("target")},
	response.WebhookRemediate:   {called("target")},
	response.Alertmanager:       {choice("severity", "info", "warning", "critical"), matching("target", false, nameWanted, name)},
	response.Command:            {called("command")},
	response.NodeCheck:          {called("script")},
	response.NodeRestartHalf:    {choice("half", "host", "dnp")},
	response.NodeLimitFrequency: {percent("percent")},
	response.PowerReset:         {choice("method", "redfish", "ipmi")},
	response.Eureka:             {words("text", true)},
}

func textual(key string, required bool, want, cel string, check func(string) bool) parameter {
	return parameter{key, required, want, func(v any) (string, bool) {
		s, ok := v.(string)
		return s, ok && check(s)
	}, "string", cel}
}

// matching returns a parameter that matches a regular expression, which has the same syntax in CEL.
func matching(key string, required bool, want string, re *regexp.Regexp) parameter {
	return textual(key, required, want, "{v}.matches("+celText(re.String())+")", re.MatchString)
}

func choice(key string, options ...string) parameter {
	return textual(key, true, "one of "+strings.Join(options, ", "), "{v} in "+celList(options),
		func(s string) bool { return slices.Contains(options, s) })
}

var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)

func camel(key string, required bool) parameter {
	return matching(key, required, "1 to 63 letters and digits, the first a capital", camelCase)
}

// labelKeyForm and labelValueForm match the texts that fault.CheckLabelKey and fault.CheckLabelValue allow.
const (
	labelKeyForm   = `^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`
	labelValueForm = `^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$`
)

func labelKey(key string) parameter {
	return textual(key, true, "a label's key", "{v}.matches("+celText(labelKeyForm)+")",
		func(s string) bool { return fault.CheckLabelKey(s) == nil })
}

func labelValue(key string) parameter {
	return textual(key, false, "a label's value", "{v}.matches("+celText(labelValueForm)+")",
		func(s string) bool { return fault.CheckLabelValue(s) == nil })
}

// called returns a parameter that is a name from the configuration of the executor.
func called(key string) parameter { return matching(key, true, nameWanted, name) }

// template returns a parameter that names the template of a remediation.
func template(key, pattern, want string) parameter {
	return matching(key, true, want, regexp.MustCompile(pattern))
}

const maxWords = 120

func words(key string, required bool) parameter {
	return textual(key, required, fmt.Sprintf("a text of 1 to %d bytes in one line", maxWords),
		fmt.Sprintf(`{v} != '' && size(bytes({v})) <= %d && !{v}.matches(r'[\x00-\x1f\x7f]')`, maxWords), func(s string) bool {
			return s != "" && len(s) <= maxWords && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f })
		})
}

func span(key string, most time.Duration) parameter {
	return textual(key, false, "a duration from 0s to "+hours(most), celDuration("{v}", 0, most), func(s string) bool {
		d, err := time.ParseDuration(s)
		return err == nil && d >= 0 && d <= most
	})
}

func flag(key string) parameter {
	return parameter{key, false, "true or false", func(v any) (string, bool) {
		b, ok := v.(bool)
		return fmt.Sprint(b), ok
	}, "boolean", ""}
}

func percent(key string) parameter {
	return parameter{key, true, "a whole number from 10 to 100", func(v any) (string, bool) {
		f, ok := v.(float64)
		return fmt.Sprint(f), ok && f >= 10 && f <= 100 && f == float64(int(f))
	}, "integer", "{v} >= 10 && {v} <= 100"}
}
