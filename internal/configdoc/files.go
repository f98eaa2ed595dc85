package configdoc

import (
	"fmt"
	"strings"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/inventory"
)

// Files are all generated files, by their paths in the module.
func Files(root string) (map[string]string, error) {
	s := Open(root)
	out := map[string]string{}
	var doc strings.Builder
	doc.WriteString(`# Configuration reference

Generated from the structs that the programs read, by ` + "`make generate`" + `. Do not edit it: the comments in the code are the source.

Configurations are YAML. Unknown keys and values outside their range are refused, all at once, with the field, what was given and what is allowed:
` + "`lofamo-agent config check --config FILE`, `lofamo-supervisor config check FILE`, `lofamo-executor check-config FILE`" + `. Durations are written 25ms, 10s, 1h30m. Where it says *Default* the value stands in the
third column unless it is made from others. ` + "`NAME[].KEY`" + ` is a key of each entry of a list, ` + "`NAME.*.KEY`" + ` of each value of a map.

Files with every default and explanation are in ` + "`deploy/config`" + `, and beside the packages' documentation; ` + "`lofamoctl cluster init`" + ` makes files that are complete.
`)
	for _, d := range []struct {
		title, pkg, name, file, head string
		defaults                     any
	}{
		{
			"The agent: agent.yaml", "internal/config", "Agent", "deploy/config/agent.yaml",
			"/etc/lofamo/agent.yaml: the configuration of a node, read by both halves and their daemon, with every key and its default. What is required has none, and stands behind a '#': 'lofamoctl cluster init' makes a file that is complete. Check it with: lofamo-agent config check --config /etc/lofamo/agent.yaml",
			config.DefaultAgent(),
		},
		{
			"The supervisor: supervisor.yaml", "internal/config", "Supervisor", "deploy/config/supervisor.yaml",
			"/etc/lofamo/supervisor.yaml: the configuration of one supervisor replica, with every key and its default. What is required has none, and stands behind a '#': 'lofamoctl cluster init' makes a file that is complete. Check it with: lofamo-supervisor config check /etc/lofamo/supervisor.yaml",
			config.DefaultSupervisor(),
		},
		{
			"The executor process: executor.yaml", "internal/executor/process", "Config", "deploy/config/executor.yaml",
			"/etc/lofamo/executor.yaml: the configuration of the executor process, with every key and its default. What is required has none, and stands behind a '#'. Check it with: lofamo-executor check-config /etc/lofamo/executor.yaml",
			process.Default(),
		},
		{"The inventory of lofamoctl cluster", "internal/inventory", "Inventory", "", "", inventory.Inventory{}},
	} {
		fields, text, err := s.Struct(d.pkg, d.name)
		if err != nil {
			return nil, err
		}
		defaults, err := Defaults(d.defaults)
		if err != nil {
			return nil, fmt.Errorf("defaults of %s: %w", d.name, err)
		}
		fmt.Fprintf(&doc, "\n## %s\n\n%s\n\n%s", d.title, text, Markdown(fields, defaults))
		if d.file != "" {
			out[d.file] = YAML(d.head, fields, defaults)
		}
	}
	out["docs/configuration.md"] = doc.String()
	return out, nil
}
