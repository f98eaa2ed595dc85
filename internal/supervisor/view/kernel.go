package view

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// PutKernels adds the verdicts on the kernels of the host half and the DNP half to a node.
func PutKernels(n *lofamov1.Node, of [2]awareness.KernelVerdict) {
	n.HostKernel, n.DnpKernel = kernelVerdict(of[0]), kernelVerdict(of[1])
}

// kernelVerdict renders a verdict; nil: nothing is known.
func kernelVerdict(k awareness.KernelVerdict) *lofamov1.KernelVerdict {
	if k == (awareness.KernelVerdict{}) {
		return nil
	}
	return &lofamov1.KernelVerdict{Dead: lofamov1.KernelDead(k.Dead), Why: k.Why}
}

// kernel is the inverse of kernelVerdict. An answer known only to a later version counts as unknown.
func kernel(k *lofamov1.KernelVerdict) awareness.KernelVerdict {
	dead := fault.KernelDead(k.GetDead())
	if k.GetDead() < 0 || k.GetDead() > lofamov1.KernelDead_KERNEL_DEAD_NO {
		dead = 0
	}
	return awareness.KernelVerdict{Dead: dead, Why: k.GetWhy()}
}

// KernelDead returns the verdict for a component: for a FAILED node and for halves.
func (e *Entry) KernelDead(c fault.Component) awareness.KernelVerdict {
	switch {
	case c == fault.ComponentHost, c == fault.ComponentNode && e.Status.State == fault.Failed:
		return e.Kernels[0]
	case c == fault.ComponentDNP:
		return e.Kernels[1]
	}
	return awareness.KernelVerdict{}
}
