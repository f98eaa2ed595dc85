package response

import (
	"fmt"
	"slices"
	"strings"
)

// Class says what an executor's act does to a node. The gates depend on it.
type Class uint8

// The classes, the gravest last.
const (
	// Notify tells somebody, and takes nothing from the node. It is free of caps, breaker, maintenance and opt-out.
	Notify Class = iota + 1
	// Reduce takes the node, or a part of it, from new use. Work that is there goes on.
	Reduce
	// Destroy ends work on the node, or may: it wants independent witnesses.
	Destroy
)

var classNames = [...]string{"", "notify", "reduce", "destroy"}

func (c Class) String() string {
	if c == 0 || int(c) >= len(classNames) {
		return fmt.Sprintf("Class(%d)", uint8(c))
	}
	return classNames[c]
}

// Kind is what an executor does, as "kubernetes.cordon".
type Kind string

// The kinds of acts.
const (
	KubernetesCondition Kind = "kubernetes.condition"
	KubernetesEvent     Kind = "kubernetes.event"
	KubernetesLabel     Kind = "kubernetes.label"
	KubernetesCordon    Kind = "kubernetes.cordon"
	KubernetesTaint     Kind = "kubernetes.taint"
	KubernetesEvict     Kind = "kubernetes.taint-no-execute"
	KubernetesDrain     Kind = "kubernetes.drain"
	SlurmDrain          Kind = "slurm.drain"
	WebhookNotify       Kind = "webhook.notify"
	WebhookRemediate    Kind = "webhook.remediate"
	Alertmanager        Kind = "alertmanager"
	Command             Kind = "command"
	NodeCheck           Kind = "node.check"
	NodeRestartHalf     Kind = "node.restart-half"
	NodeMaskChannel     Kind = "node.mask-channel"
	NodeLimitFrequency  Kind = "node.limit-frequency"
	PowerReset          Kind = "power.reset"
	Eureka              Kind = "eureka"
)

// Traits are what the engine has to know of a kind.
type Traits struct {
	Class Class
	// Undoable: it can be put back, and its executor puts back only what it did itself.
	Undoable bool
	// Repeatable: its executor looks first whether it has happened, so that an attempt of unknown outcome may be
	// repeated with Effect.Recheck. What is not repeatable is settled by a person, or by BootSettles.
	Repeatable bool
	// BootSettles: a newer boot epoch of the node's host is taken to prove that it has happened. That its executor says so is not: a
	// BMC answers for itself. Then it is waited for until the host half has begun anew, or others have seen the node go down, within
	// StepRecord.sightTime.
	BootSettles bool
	// Groups: it may be for a group fault as well, which has no one node.
	Groups bool
	// Always: no rate of the engine holds it back; its executor has one of its own, and does the rest later.
	Always bool
}

// traits of every kind. A webhook's remediator and a command may do anything, so they are taken for the gravest.
var traits = map[Kind]Traits{
	KubernetesCondition: {Class: Notify, Undoable: true, Repeatable: true, Always: true},
	KubernetesEvent:     {Class: Notify, Repeatable: true, Always: true},
	KubernetesLabel:     {Class: Notify, Undoable: true, Repeatable: true},
	KubernetesCordon:    {Class: Reduce, Undoable: true, Repeatable: true},
	KubernetesTaint:     {Class: Reduce, Undoable: true, Repeatable: true},
	KubernetesEvict:     {Class: Destroy, Undoable: true, Repeatable: true},
	KubernetesDrain:     {Class: Destroy, Undoable: true, Repeatable: true},
	SlurmDrain:          {Class: Reduce, Undoable: true, Repeatable: true},
	WebhookNotify:       {Class: Notify, Undoable: true, Repeatable: true, Groups: true},
	WebhookRemediate:    {Class: Destroy, Undoable: true, Repeatable: true},
	Alertmanager:        {Class: Notify, Undoable: true, Repeatable: true, Groups: true},
	Command:             {Class: Destroy},
	NodeCheck:           {Class: Reduce, Repeatable: true},
	NodeRestartHalf:     {Class: Reduce, Repeatable: true},
	NodeMaskChannel:     {Class: Reduce, Undoable: true, Repeatable: true},
	NodeLimitFrequency:  {Class: Reduce, Undoable: true, Repeatable: true},
	PowerReset:          {Class: Destroy, BootSettles: true},
	Eureka:              {Class: Notify, Repeatable: true, Groups: true},
}

// Traits of the kind; the zero Traits of one that does not exist.
func (k Kind) Traits() Traits { return traits[k] }

// Valid says whether there is such a kind.
func (k Kind) Valid() bool { return traits[k].Class != 0 }

// Kinds lists all kinds, sorted.
func Kinds() []Kind {
	out := make([]Kind, 0, len(traits))
	for k := range traits {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Kind) int { return strings.Compare(string(a), string(b)) })
	return out
}
