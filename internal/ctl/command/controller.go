package command

import (
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// controllerLines describes the last answer of a node's management controller: its finding with its age, the hint at a power feed, the
// worst sensor and the last entry of the event log. It returns none without a controller.
func controllerLines(c *lofamov1.ManagementController) []string {
	if c == nil {
		return nil
	}
	s := controllerFinding(c.GetFinding()) + " for " + ProtoDuration(c.GetSince()) + ", read " + ProtoDuration(c.GetAge()) + " ago"
	switch c.GetHealth() {
	case lofamov1.ControllerHealth_HEALTH_WARNING, lofamov1.ControllerHealth_HEALTH_CRITICAL:
		s += ", hardware " + strings.ToLower(strings.TrimPrefix(c.GetHealth().String(), "HEALTH_"))
	default:
	}
	if c.GetDetail() != "" {
		s += ": " + Printable(c.GetDetail())
	}
	out := []string{s + " (evidence, not a verdict)"}
	if c.GetPowerFeedSuspected() {
		out = append(out, "hint: node and controller are both silent: check the power feed")
	}
	if all := c.GetSensors(); len(all) > 0 {
		out = append(out, "sensors: "+Printable(all[0]))
	}
	if log := c.GetLog(); len(log) > 0 {
		out = append(out, "last event: "+Printable(log[len(log)-1]))
	}
	return out
}

// controllerFinding returns a finding for people.
func controllerFinding(f lofamov1.ControllerFinding) string {
	switch f {
	case lofamov1.ControllerFinding_CONTROLLER_SILENT:
		return "silent"
	case lofamov1.ControllerFinding_CONTROLLER_ERROR:
		return "error"
	default:
		return strings.ToLower(strings.ReplaceAll(f.String(), "_", " "))
	}
}
