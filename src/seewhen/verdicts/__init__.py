"""Words that name objects, yes/no questions about them, and calibrated verdicts."""
