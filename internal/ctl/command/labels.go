package command

import (
	"maps"
	"slices"
	"strings"
)

// labels prints labels by key.
func labels(all map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		out = append(out, k+"="+all[k])
	}
	return strings.Join(out, ",")
}

// LabelText is "gpu,rack=r7": a label without a value is its key.
func LabelText(labels map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if v := labels[k]; v != "" {
			k += "=" + v
		}
		parts = append(parts, k)
	}
	return strings.Join(parts, ",")
}
