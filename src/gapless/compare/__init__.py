"""Run a workload under several plans and compare what comes out."""
