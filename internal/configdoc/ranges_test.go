package configdoc

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/inventory"
)

// limit is a range that the documentation states as text, with valid and invalid values.
type limit struct {
	text      string
	good, bad []any
}

// program is a configuration whose documented ranges are tested.
type program struct {
	pkg, name string
	validate  func(file string) (read, invalid error)
	beside    map[string]map[string]any // values of other keys that a key, or the keys of a section, need
	limits    map[string]limit          // ranges that inWords tests
}

func programs() []program {
	return []program{
		{
			pkg: "internal/config", name: "Agent",
			validate: func(file string) (error, error) {
				a := config.DefaultAgent()
				err := config.ReadStrict(file, config.MaxFile, &a)
				if a.Join.Given() {
					return err, a.ValidateJoin()
				}
				return err, a.Validate()
			},
			beside: map[string]map[string]any{
				"hardwareWatchdog.":           {"hardwareWatchdog.device": "/dev/watchdog0", "hardwareWatchdog.timeout": "4s"},
				"hardwareWatchdog.timeout":    {"hardwareWatchdog.device": "/dev/watchdog0"},
				"join.":                       {"join.supervisors[]": "10.0.0.1:7944"},
				"sensors.peripherals[].port":  {"sensors.peripherals[].kind": "rdma", "sensors.peripherals[].device": "mlx5_0"},
				"sensors.peripherals[].inter": {"sensors.peripherals[].kind": "block", "sensors.peripherals[].device": "nvme0n1"},
				"sensors.peripherals[].time":  {"sensors.peripherals[].kind": "script", "sensors.peripherals[].interval": "1h"},
				"periods.linkSickRatio":       {"periods.linkClearRatio": 0.0},
				"periods.challengeNode":       {"periods.challengeSingle": "10m"},
				"periods.tWrite":              {"periods.tRead": "60s"},
				"periods.tRead":               {"periods.tWrite": "1ms"},
				"responses.checks[].timeout":  {"responses.checks[].name": "a"},
				"service.alternates":          {"service.listen": "10.0.0.1:1"},
			},
			limits: map[string]limit{
				"diskWarnBytes":                         {"0 for never, or at most 1 TiB", []any{0.0, 1099511627776.0}, []any{-1.0, 1099511627777.0}},
				"maxHops":                               {"1 to 255, or 0", []any{0.0}, nil},
				"processor.budget":                      {"0.1 to 100, or 0", []any{0.0}, nil},
				"hardwareWatchdog.timeout":              {"in whole seconds", nil, []any{"4.5s"}},
				"selfTest.idleAfter":                    {"interval to 10m", []any{"2s", "10m"}, []any{"1.9s", "10m1s"}},
				"selfTest.interval":                     {"or 0s for no self-tests", []any{"0s"}, nil},
				"sensors.interface.sickErrorsPerSecond": {"More than 0", []any{0.5}, []any{0.0, -1.0}},
				"sensors.interface.sickDropsPerSecond":  {"More than 0", []any{0.5}, []any{0.0, -1.0}},
				"sensors.memory.sickPressurePercent":    {"More than 0, up to 100", []any{0.5, 100.0}, []any{0.0, 100.5}},
				"periods.challengeSingle":               {"challengeNode to 10m", []any{"60ms", "10m"}, []any{"59ms", "10m1s"}},
				"periods.linkSickRatio":                 {"Above 0, below 1", []any{0.02, 0.99}, []any{0.0, 1.0}},
				"periods.linkClearRatio":                {"0 or more, below linkSickRatio", []any{0.0, 0.04}, []any{-0.1, 0.05}},
				"periods.linkMinErrors":                 {"1 to linkWindow", []any{1.0, 100.0}, []any{0.0, 101.0}},
				"jobs.mode":                             {`"0600" to "0777"`, []any{"0600", "0777"}, nil},
			},
		},
		{
			pkg: "internal/config", name: "Supervisor",
			validate: func(file string) (error, error) {
				s := config.DefaultSupervisor()
				err := config.ReadStrict(file, config.MaxFile, &s)
				return err, s.Validate()
			},
			beside: map[string]map[string]any{
				"renewal.":              {"renewal.cert": "a", "renewal.key": "b"},
				"web.":                  {"web.listen": "127.0.0.1:1"},
				"periods.challengeNode": {"periods.challengeSingle": "10m"},
				"periods.tWrite":        {"periods.tRead": "60s"},
				"periods.tRead":         {"periods.tWrite": "1ms"},
				"responses.executors.alertmanager.resend": {"responses.executors.alertmanager.hold": "24h"},
			},
			limits: map[string]limit{
				"diskWarnBytes":                         {"0 for never, or at most 1 TiB", []any{0.0, 1099511627776.0}, []any{-1.0, 1099511627777.0}},
				"domainLabels":                          domainLabels(),
				"foresight":                             {"0 for no warnings", []any{"0s"}, nil},
				"stopLimit":                             {"0 to switch", []any{"0s"}, nil},
				"periods.challengeSingle":               {"challengeNode to 10m", []any{"60ms", "10m"}, []any{"59ms", "10m1s"}},
				"responses.rateWindow":                  {"1s or more", []any{"1s"}, []any{"999ms"}},
				"responses.breakerWindow":               {"1s or more", []any{"1s"}, []any{"999ms"}},
				"responses.grace":                       {"0s or more", []any{"0s"}, []any{"-1s"}},
				"responses.stormDelay":                  {"0s or more", []any{"0s"}, []any{"-1s"}},
				"responses.cooldown":                    {"0s or more", []any{"0s"}, []any{"-1s"}},
				"responses.maxEvidenceAge":              {"1ms or more", []any{"1ms"}, []any{"999µs"}},
				"responses.fenceMargin":                 {"1s or more", []any{"1s"}, []any{"999ms"}},
				"responses.approvalTime":                {"1s or more", []any{"1s"}, []any{"999ms"}},
				"responses.keep":                        {"at least as long as", []any{"1h"}, []any{"59m"}},
				"responses.executors.alertmanager.hold": {"At least three times resend, at most 24h", []any{"3m", "24h"}, []any{"2m59s", "25h"}},
			},
		},
		{
			pkg: "internal/executor/process", name: "Config",
			validate: func(file string) (error, error) {
				c := process.Default()
				err := config.ReadStrict(file, config.MaxFile, &c)
				return err, c.Validate()
			},
			beside: map[string]map[string]any{
				"controllers.": {"controllers.nodes.n0.kind": "ipmi"},
			},
			limits: map[string]limit{
				"commands[].user.uid":              {"0 to 2^32-2", []any{0.0, 4294967294.0}, []any{4294967295.0}},
				"commands[].user.gid":              {"0 to 2^32-2", []any{0.0, 4294967294.0}, []any{4294967295.0}},
				"controllers.nodes.n0.cipherSuite": {"17 (SHA-256) or 3 (SHA-1)", []any{17.0, 3.0}, []any{4.0}},
			},
		},
		{
			pkg: "internal/inventory", name: "Inventory",
			validate: func(file string) (error, error) {
				var inv inventory.Inventory
				err := config.ReadStrict(file, config.MaxFile, &inv)
				return err, inv.Validate()
			},
			limits: inventoryLimits("ports.service", "ports.nodeGossip", "ports.report", "ports.grpc", "ports.http", "ports.web", "ports.gossip",
				"ports.enrolment", "ports.etcdPeer", "ports.etcdClient", "ports.agentHTTP"),
		},
	}
}

func domainLabels() limit {
	keys := make([]any, 17)
	for i := range keys {
		keys[i] = fmt.Sprintf("label%d", i)
	}
	return limit{"at most 16", []any{keys[:16]}, []any{keys}}
}

// inventoryLimits returns the limits of an inventory with these ports.
func inventoryLimits(keys ...string) map[string]limit {
	out := map[string]limit{"ports.links": {"1 to 65530", []any{1.0, 65530.0}, []any{-1.0, 65531.0}}, "domainLabels": domainLabels()}
	for _, k := range keys {
		out[k] = limit{"1 to 65535", []any{1.0, 65535.0}, []any{-1.0, 65536.0}}
	}
	return out
}

var (
	durationRange = regexp.MustCompile(`(?:^|[ (])(\d+(?:ms|s|m|h)) to (\d+(?:ms|s|m|h))\b`)
	numberRange   = regexp.MustCompile(`(?:^|[ (])(\d+(?:\.\d+)?)(?: ([KMGT]iB))? to (\d+(?:\.\d+)?)(?: ([KMGT]iB))?(?:[ .,;]|$)`)
)

// TestDocumentedRangesAreEnforced sets each number and duration to the ends of its documented range and to values just beyond. The
// validation must accept the ends. It must refuse the other values with a message that names the key, the value and the range.
func TestDocumentedRangesAreEnforced(t *testing.T) {
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			fields, _, err := Open(root).Struct(p.pkg, p.name)
			if err != nil {
				t.Fatal(err)
			}
			tested := 0
			p.each("", fields, func(path string, f Field) {
				tested += p.test(t, path, f)
				p.inWords(t, path, f)
			})
			t.Logf("%d ranges", tested)
			for path := range p.limits {
				t.Errorf("%s: no such key", path)
			}
			if tested == 0 {
				t.Error("no documented range was found")
			}
		})
	}
}

// each calls a function for each scalar key.
func (p program) each(prefix string, fields []Field, do func(path string, f Field)) {
	for _, f := range fields {
		path := prefix + f.Key
		switch {
		case f.List && len(f.Fields) > 0:
			p.each(path+"[].", f.Fields, do)
		case f.Map && len(f.Fields) > 0 && f.Key == "links":
			p.each(path+".X+.", f.Fields, do)
		case f.Map && len(f.Fields) > 0:
			p.each(path+".n0.", f.Fields, do)
		case len(f.Fields) > 0:
			p.each(path+".", f.Fields, do)
		default:
			do(path, f)
		}
	}
}

// test returns the number of ranges that it tested.
func (p program) test(t *testing.T, path string, f Field) int {
	switch f.Type {
	case "duration":
		m := durationRange.FindStringSubmatch(f.Doc)
		if m == nil {
			return 0
		}
		lo, _ := time.ParseDuration(m[1])
		hi, _ := time.ParseDuration(m[2])
		p.allowed(t, path, lo.String())
		p.allowed(t, path, hi.String())
		below := max(lo/2, time.Microsecond)
		if lo == 0 {
			below = -time.Second
		}
		p.refused(t, path, below.String())
		p.refused(t, path, (hi + time.Second).String())
		return 1
	case "number":
		m := numberRange.FindStringSubmatch(f.Doc)
		if m == nil {
			return 0
		}
		lo, hi := number(m[1], m[2]), number(m[3], m[4])
		p.allowed(t, path, lo)
		p.allowed(t, path, hi)
		for _, v := range []float64{beyond(lo, -1), beyond(hi, 1)} {
			p.refused(t, path, v)
		}
		return 1
	}
	return 0
}

// inWords tests a range from p.limits, which durationRange and numberRange do not cover.
func (p program) inWords(t *testing.T, path string, f Field) {
	l, ok := p.limits[path]
	delete(p.limits, path)
	if !ok {
		return
	}
	if !strings.Contains(f.Doc, l.text) {
		t.Errorf("%s: documented as %q: want the text %q", path, f.Doc, l.text)
	}
	for _, v := range l.good {
		p.allowed(t, path, v)
	}
	for _, v := range l.bad {
		p.refused(t, path, v)
	}
}

// beyond returns a value just outside the range. Below an end of 1 or less it returns -1, because 0 often stands for the default.
func beyond(end float64, direction float64) float64 {
	switch {
	case end != math.Trunc(end):
		return end * (1 + direction/2)
	case direction < 0 && end <= 1:
		return -1
	}
	return end + direction
}

func number(digits, unit string) float64 {
	v, _ := strconv.ParseFloat(digits, 64)
	for range strings.Index("_KMGT", unit[:min(1, len(unit))]) {
		v *= 1024
	}
	return v
}

func (p program) allowed(t *testing.T, path string, value any) {
	t.Helper()
	for _, line := range p.lines(t, path, value) {
		if strings.HasPrefix(line, named(path)+": given "+given(value)+":") {
			t.Errorf("%s: %v: documented as allowed, but refused: %s", path, value, line)
		}
	}
}

func (p program) refused(t *testing.T, path string, value any) {
	t.Helper()
	lines := p.lines(t, path, value)
	for _, line := range lines {
		if prefix := named(path) + ": given "; strings.HasPrefix(line, prefix+given(value)+": want ") ||
			strings.HasPrefix(line, prefix+strconv.Quote(given(value))+": want ") {
			return
		}
	}
	t.Errorf("%s: %v: no message names key, value and range:\n%s", path, value, strings.Join(lines, "\n"))
}

// named returns a key as error messages show it.
func named(path string) string { return strings.ReplaceAll(path, "[]", "[0]") }

func given(value any) string {
	if v, ok := value.(float64); ok {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return config.ShortTimes(fmt.Sprint(value))
}

// lines returns the validation errors of a configuration in which a key has that value.
func (p program) lines(t *testing.T, path string, value any) []string {
	t.Helper()
	doc := map[string]any{}
	for prefix, more := range p.beside {
		if strings.HasPrefix(path, prefix) {
			for k, v := range more {
				put(doc, k, v)
			}
		}
	}
	put(doc, path, value)
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	unread, invalid := p.validate(file)
	if unread != nil {
		return strings.Split(unread.Error(), "\n")
	}
	if invalid == nil {
		return nil
	}
	return strings.Split(invalid.Error(), "\n")
}

// put sets a key, and makes the sections and the first entries of lists around it.
func put(doc map[string]any, path string, value any) {
	head, rest, nested := strings.Cut(path, ".")
	head, list := strings.CutSuffix(head, "[]")
	switch {
	case !nested && list:
		doc[head] = []any{value}
	case !nested:
		doc[head] = value
	case list:
		if _, ok := doc[head]; !ok {
			doc[head] = []any{map[string]any{}}
		}
		put(doc[head].([]any)[0].(map[string]any), rest, value)
	default:
		if _, ok := doc[head]; !ok {
			doc[head] = map[string]any{}
		}
		put(doc[head].(map[string]any), rest, value)
	}
}
