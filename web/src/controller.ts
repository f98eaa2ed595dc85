/** Controller is a ManagementController of the API. */
export interface Controller {
  finding?: string | number; health?: string | number; detail?: string; age?: string; since?: string; log?: string[]; sensors?: string[]; powerFeedSuspected?: boolean
}

const findings: Record<string, string> = { POWERED_OFF: 'Powered off', POWERED_ON: 'Powered on', CONTROLLER_SILENT: 'The controller is silent', CONTROLLER_ERROR: 'Controller error' }
const healths: Record<string, string> = { HEALTH_WARNING: 'warning', HEALTH_CRITICAL: 'critical' }

/** controllerWords says what `lofamoctl get node` says: the finding with its age, the hardware's health if it is bad, and the detail. long writes a duration. */
export function controllerWords(c: Controller, long: (d: unknown) => string): string {
  const health = healths[c.health ?? '']
  return `${findings[c.finding ?? ''] ?? `Finding ${c.finding ?? 0}`} for ${long(c.since)}, read ${long(c.age)} ago` +
    (health ? `, hardware ${health}` : '') + (c.detail ? `: ${c.detail}` : '')
}

/** sensorWarns: the controller states another health of the sensor than OK. Such sensors come first in the list. */
export function sensorWarns(line: string): boolean {
  return !/: (OK|no health stated)$/.test(line)
}
