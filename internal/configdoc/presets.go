package configdoc

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/config"
)

// Presets returns the section of the reference with each preset's values, and the bounds that follow from them.
func Presets() (string, error) {
	presets := []string{config.PresetRelaxed, config.PresetDefault, config.PresetFast}
	var b strings.Builder
	b.WriteString(`
## The presets

The table has the values that each preset gives to the keys of ` + "`periods`" + `. [The agent](#the-agent-agentyaml) has the meaning of
each key, and [operations](operations.md#tune-the-periods-against-false-alarms) the purpose of each preset. The last rows are the
longest times from a failure to its commit in the fault map, computed from these values. For the values of a configuration,
` + "`lofamo-agent config check`" + ` prints the bounds of a half and of a node. A linkGrace of 0s stands for 5s.

`)
	fmt.Fprintf(&b, "| | `%s` |\n|---%s|\n", strings.Join(presets, "` | `"), strings.Repeat("|---", len(presets)))
	var all []config.Periods
	for _, name := range presets {
		p, err := config.Preset(name)
		if err != nil {
			return "", err
		}
		all = append(all, p)
	}
	keys := reflect.TypeFor[config.PeriodsOverride]()
	for f := range keys.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fmt.Fprintf(&b, "| `%s` |", key)
		for _, p := range all {
			v := reflect.ValueOf(p).FieldByName(f.Name)
			if !v.IsValid() {
				return "", fmt.Errorf("presets: config.Periods has no field %s", f.Name)
			}
			fmt.Fprintf(&b, " %s |", config.ShortTimes(fmt.Sprint(v.Interface())))
		}
		b.WriteString("\n")
	}
	for _, r := range []struct {
		text  string
		bound func(config.Periods) time.Duration
	}{
		{"bound: a half dies", config.Periods.HalfBound},
		{"bound: a half dies, platform `dpu`", config.Periods.DPUHalfBound},
		{"bound: a node dies", config.Periods.NodeBound},
		{"bound: a node dies, fewer living witnesses than the quorum", config.Periods.SingleBound},
	} {
		fmt.Fprintf(&b, "| %s |", r.text)
		for _, p := range all {
			fmt.Fprintf(&b, " %v |", r.bound(p))
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}
